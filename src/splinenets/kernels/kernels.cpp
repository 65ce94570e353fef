// A convolution whose filters lie on splines, one position for each sample, forward and backward.
//
// Weights of a sample are mixed from the degree + 1 knots it touches, right before they are used, and never leave the
// cache; backward they are mixed again, and their gradient goes straight into the knots'. So neither time nor memory
// grows with the number of knots. Images are (N, H, W, C) in memory; what is written is (samples, height, width, filters).
//
// One scheme serves two kinds of numbers. A *unit* is 32 bits: one float, or two bf16 numbers that one instruction
// multiplies and adds up. A *vector* is LANES units. Every inner loop multiplies a vector by a broadcast unit.

#include "splines.h"

#include <omp.h>
#include <pthread.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

namespace {

constexpr int LANES = WIDTH;

inline Vector broadcast(float value) { return value - Vector{}; }

// LANES rows of LANES floats, or of anything else of 32 bits -> their transpose, densely
inline void transpose(const void* from, int64_t stride, void* to) {
  Vector rows[LANES];  // which never leave the registers: a memcpy of all of them would be a call
#pragma GCC unroll 16
  for (int i = 0; i < LANES; i++) rows[i] = load(static_cast<const float*>(from) + i * stride);
  exchange_all<1>(rows);
#pragma GCC unroll 16
  for (int i = 0; i < LANES; i++) store(static_cast<float*>(to) + i * LANES, rows[i]);
}

#if defined(__AVX512F__)
constexpr int TILE = 24;
#else
constexpr int TILE = 12;  // accumulators that fit the registers, some left for operands
#endif

// A process that was forked has none of its parent's threads, and OpenMP would wait for them: there we work alone
bool forked = false;
const int watched = pthread_atfork(nullptr, nullptr, [] { forked = true; });
int team(int64_t wanted) { return forked ? 1 : int(wanted); }
int team() { return team(omp_get_max_threads()); }

// Two kinds of numbers: Real as stored, PER_UNIT of them in a unit

struct Float {
  typedef float Real;
  static constexpr int PER_UNIT = 1;
  static Vector multiply_add(Vector sum, Units weights, const Real* unit) {
    return sum + reinterpret_cast<Vector>(weights) * broadcast(*unit);
  }
  static Vector read(const Real* from) { return load(from); }
  static void write(Real* to, Vector value) { store(to, value); }
  static void write_unit(uint32_t* to, int, Vector value) { store(reinterpret_cast<float*>(to), value); }
  static Real from_float(float value) { return value; }
  static float to_float(Real value) { return value; }
};

#if defined(__AVX512BF16__)
struct Bfloat {
  typedef uint16_t Real;
  static constexpr int PER_UNIT = 2;
  static Vector multiply_add(Vector sum, Units weights, const Real* unit) {
    int both;
    memcpy(&both, unit, 4);
    return (Vector)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32(both), (__m512bh)weights);
  }
  static Vector read(const Real* from) {  // two instructions, where GCC makes six of `load`
    return (Vector)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)from)), 16);
  }
  static void write(Real* to, Vector value) {
    _mm256_storeu_si256((__m256i*)to, (__m256i)_mm512_cvtneps_pbh((__m512)value));
  }
  static void write_unit(uint32_t* to, int part, Vector value) {  // the first half of each unit before the second
    const __m512i half = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)value));
    _mm512_storeu_si512(to, part ? _mm512_or_si512(_mm512_loadu_si512(to), _mm512_slli_epi32(half, 16)) : half);
  }
  static Real from_float(float value) { return (Real)_mm_extract_epi16((__m128i)_mm_cvtneps_pbh(_mm_set_ss(value)), 0); }
  static float to_float(Real value) {
    uint32_t bits = uint32_t(value) << 16;
    float result;
    memcpy(&result, &bits, 4);
    return result;
  }
};
#endif

template <class T>
void write_some(typename T::Real* to, Vector value, int count) {
  if (count >= LANES) return T::write(to, value);
  for (int i = 0; i < count; i++) to[i] = T::from_float(value[i]);
}

}  // namespace

// What Python hands over; the same order in calls.py
struct Layer {
  int64_t samples, channels, height, width, filters, out_height, out_width;
  int64_t kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
  int64_t splines, dims, knots, degree;
  const float* basis;  // (degree + 1, degree + 1), row p, column j: the coefficient of t^p in the j-th function
};

namespace {

// Memory that a thread keeps from call to call
struct Scratch {
  char* memory = nullptr;
  size_t size = 0, used = 0;
  ~Scratch() { free(memory); }
  void reserve(size_t bytes) {
    used = 0;
    if (bytes <= size) return;
    free(memory);
    size = round_up(bytes, 4096);
    memory = static_cast<char*>(aligned_alloc(4096, size));
  }
  template <class R>
  R* take(size_t count) {
    R* result = reinterpret_cast<R*>(memory + used);
    used += round_up(count * sizeof(R), 64);
    return result;
  }
};
thread_local Scratch scratch;

// Sizes that follow from a layer
template <class T>
struct Plan : Layer {
  static constexpr int PER_UNIT = T::PER_UNIT, BLOCK = LANES * PER_UNIT;
  typedef typename T::Real Real;
  int64_t taps, depth, width_f, row, active, rows, filter_blocks, channel_blocks, padded_h, padded_w;

  explicit Plan(const Layer& layer) : Layer(layer) {
    taps = kernel_h * kernel_w;
    depth = round_up(channels, PER_UNIT);   // channels in a padded image and in a row of weights
    width_f = round_up(filters, PER_UNIT);  // filters in a padded gradient
    row = round_up(taps * depth, BLOCK);    // one filter: (taps, depth), then zeros
    active = dims * (degree + 1);
    rows = dims * knots;
    filter_blocks = (filters + LANES - 1) / LANES;
    channel_blocks = (channels + LANES - 1) / LANES;
    padded_h = (out_height - 1) * stride_h + (kernel_h - 1) * dilation_h + 1;
    padded_w = (out_width - 1) * stride_w + (kernel_w - 1) * dilation_w + 1;
  }
};

// Mixing

struct Active {
  int row;
  float value, slope;  // of the basis function, and its derivative by the position
};

// The basis functions that a sample's positions touch: (splines, dims) -> (splines, active)
void touch(const Layer& layer, const float* position, Active* result) {
  const Basis basis = {layer.knots, layer.degree, layer.basis};
  const int spans = int(layer.knots - layer.degree);
  for (int64_t s = 0; s < layer.splines; s++)
    for (int64_t dim = 0; dim < layer.dims; dim++) {
      const float p = position[s * layer.dims + dim];
      const bool inside = p >= 0 && p <= 1;
      const Spot spot = locate(basis, p);
      for (int j = 0; j <= layer.degree; j++) {
        const Height here = evaluate(basis, j, spot.t);
        const float slope = inside ? here.slope * spans / layer.dims : 0;
        *result++ = {int(dim * layer.knots) + spot.span + j, here.value / layer.dims, slope};
      }
    }
}

// A sample's weights: sums over active knots, (rows, filters, row) -> (filters, row). ACTIVE of them, 0: known later
template <class T, int ACTIVE>
void mix_some(const Plan<T>& plan, const typename T::Real* knots, const Active* active, typename T::Real* to) {
  const int count = ACTIVE ? ACTIVE : plan.active;
  const int64_t stride = plan.filters * plan.row;
  for (int64_t f = 0; f < plan.filters; f++, knots += plan.row, to += plan.row) {
    const Active* here = active + f * plan.splines / plan.filters * count;
    for (int64_t i = 0; i < plan.row; i += LANES) {
      Vector sum = {};
      for (int a = 0; a < count; a++) sum += broadcast(here[a].value) * T::read(knots + here[a].row * stride + i);
      T::write(to + i, sum);
    }
  }
}

template <class T>
void mix(const Plan<T>& plan, const typename T::Real* knots, const Active* active, typename T::Real* to) {
  switch (plan.active) {
    case 2:
      return mix_some<T, 2>(plan, knots, active, to);
    case 3:
      return mix_some<T, 3>(plan, knots, active, to);
    case 4:
      return mix_some<T, 4>(plan, knots, active, to);
    default:
      return mix_some<T, 0>(plan, knots, active, to);
  }
}

// Filters across lanes: (filters, row) -> (filter_blocks, units of a row, LANES)
template <class T>
void filters_across(const Plan<T>& plan, const typename T::Real* mixed, uint32_t* to) {
  const int64_t units = plan.row / T::PER_UNIT;
  for (int64_t b = 0; b < plan.filter_blocks; b++)
    for (int64_t u = 0; u < units; u += LANES)
      transpose(mixed + b * LANES * plan.row + u * T::PER_UNIT, units, to + (b * units + u) * LANES);
}

// A base as torch keeps it, and how far apart its neighbours lie
struct Base {
  const float* at;  // nullptr: there is none
  int64_t filter, channel, tap;
  float operator()(int64_t f, int64_t c, int64_t t) const { return at ? at[f * filter + c * channel + t * tap] : 0; }
};

// Knots as torch keeps them, (rows, filters, channels, taps), and room for LANES filters, before and after they are turned
struct Loose {
  const float* knots;
  Base base;
  float *room, *laid;  // (LANES, fan-in), (taps, channels, LANES)
};

// For few samples: mix loose knots, and lay filters across lanes at once; blocks of filters from first to last
template <class T>
void mix_across(const Plan<T>& plan, const Loose& loose, const Active* active, int64_t first, int64_t last, uint32_t* to) {
  const float* knots = loose.knots;
  const Base& base = loose.base;
  float *room = loose.room, *laid = loose.laid;
  const int64_t fan_in = plan.channels * plan.taps, stride = plan.filters * fan_in, row = round_up(fan_in, LANES);
  float turned[LANES * LANES];
  for (int64_t b = first; b < last; b++) {
    const int64_t count = std::min<int64_t>(LANES, plan.filters - b * LANES);
    for (int64_t i = 0; i < count; i++) {
      const int64_t f = b * LANES + i;
      const Active* here = active + f * plan.splines / plan.filters * plan.active;
      const float* common = base.at && base.tap == 1 ? base.at + f * fan_in : nullptr;
      const auto mixed = [&](int64_t j, auto read) {
        auto sum = common ? read(common + j) : read(knots) * 0;
        for (int a = 0; a < plan.active; a++) sum += here[a].value * read(knots + here[a].row * stride + f * fan_in + j);
        return sum;
      };
      int64_t j = 0;
      for (; j + LANES <= fan_in; j += LANES) store(room + i * row + j, mixed(j, Float::read));
      for (; j < fan_in; j++) room[i * row + j] = mixed(j, [](const float* at) { return *at; });
    }
    for (int64_t j = 0, c = 0, t = 0; j < fan_in; j += LANES) {
      transpose(room + j, row, turned);
      for (int i = 0; i < LANES && j + i < fan_in; i++) {
        store(laid + (t * plan.channels + c) * LANES, load(turned + i * LANES));
        if (++t == plan.taps) t = 0, c++;
      }
    }
    if (base.at && base.tap != 1) {  // channels last: the order of `laid`
      for (int64_t i = 0; i < count; i++) memcpy(room + i * row, base.at + (b * LANES + i) * fan_in, 4 * fan_in);
      for (int64_t j = 0; j < fan_in; j += LANES) {
        transpose(room + j, row, turned);
        for (int i = 0; i < LANES && j + i < fan_in; i++)
          store(laid + (j + i) * LANES, load(laid + (j + i) * LANES) + load(turned + i * LANES));
      }
    }
    for (int64_t t = 0; t < plan.taps; t++)
      for (int64_t c = 0; c < plan.depth; c += T::PER_UNIT, to += LANES)
        for (int i = 0; i < T::PER_UNIT; i++)
          T::write_unit(to, i, c + i < plan.channels ? load(laid + (t * plan.channels + c + i) * LANES) : Vector{});
    to += plan.row / T::PER_UNIT * LANES - plan.taps * plan.depth / T::PER_UNIT * LANES;
  }
}

// LANES numbers of one row beside those of the next: LANES units that each hold both
template <class T>
inline void interleave(const typename T::Real* first, const typename T::Real* second, int count, typename T::Real* to) {
#if defined(__AVX512BF16__)
  if (T::PER_UNIT == 2 && count >= LANES) {
    __m512i low = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)first));
    __m512i high = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)second)), 16);
    _mm512_storeu_si512(to, _mm512_or_si512(low, high));
    return;
  }
#endif
  for (int i = 0; i < LANES; i++) {
    to[T::PER_UNIT * i] = i < count ? first[i] : 0;
    if (T::PER_UNIT == 2) to[2 * i + 1] = i < count ? second[i] : 0;
  }
}

// Channels across lanes: (filters, taps, depth) -> (channel_blocks, taps, units of filters, LANES)
template <class T>
void channels_across(const Plan<T>& plan, const typename T::Real* mixed, uint32_t* to) {
  for (int64_t b = 0; b < plan.channel_blocks; b++)
    for (int64_t tap = 0; tap < plan.taps; tap++)
      for (int64_t f = 0; f < plan.width_f; f += T::PER_UNIT, to += LANES) {
        const typename T::Real* from = mixed + f * plan.row + tap * plan.depth + b * LANES;
        interleave<T>(from, from + plan.row, plan.depth - b * LANES, reinterpret_cast<typename T::Real*>(to));
      }
}

// Convolving one image with weights that have their outputs across lanes

struct Tap {
  int64_t from, weights;  // where it reads, from an output's own place, and its units among the weights
};

// A grid of outputs, and what they are made of
template <class T>
struct Grid {
  const typename T::Real* image;  // where the first output reads
  int64_t line, step;             // from there to where the next row and the next place read
  int64_t high, wide;
  const Tap* taps;
  int count;                // of taps
  const uint32_t* weights;  // (blocks of outputs, taps, units, LANES)
  int64_t block, units;     // of all taps, times LANES; of one
  const float* bias;
  typename T::Real* to;
  int64_t to_line, to_step, outputs;
};

// OUT blocks of LANES outputs at PIXELS places of a row; STEP numbers from one place to the next, 0: known later
template <class T, int PIXELS, int OUT, int STEP>
void tile(const Grid<T>& grid, const typename T::Real* image, typename T::Real* to) {
  const int64_t step = STEP ? STEP : grid.step, to_step = grid.to_step, block = grid.block, units = grid.units;
  const int outputs = int(grid.outputs);
  Vector sum[OUT][PIXELS];
#pragma GCC unroll 2
  for (int o = 0; o < OUT; o++)
#pragma GCC unroll 24
    for (int p = 0; p < PIXELS; p++) sum[o][p] = load(grid.bias + o * LANES);
  for (const Tap *tap = grid.taps, *end = tap + grid.count; tap < end; tap++) {
    const typename T::Real* from = image + tap->from;
    const uint32_t* w = grid.weights + tap->weights * LANES;
    for (int64_t u = 0; u < units; u++, from += T::PER_UNIT, w += LANES) {
      Units here[OUT];
      for (int o = 0; o < OUT; o++) here[o] = *reinterpret_cast<const Units*>(w + o * block);
#pragma GCC unroll 24
      for (int p = 0; p < PIXELS; p++)
#pragma GCC unroll 2
        for (int o = 0; o < OUT; o++) sum[o][p] = T::multiply_add(sum[o][p], here[o], from + p * step);
    }
  }
  if (outputs >= OUT * LANES) {
#pragma GCC unroll 24
    for (int p = 0; p < PIXELS; p++)
#pragma GCC unroll 2
      for (int o = 0; o < OUT; o++) T::write(to + p * to_step + o * LANES, sum[o][p]);
  } else {
    for (int p = 0; p < PIXELS; p++)
      for (int o = 0; o < OUT; o++) write_some<T>(to + p * to_step + o * LANES, sum[o][p], outputs - o * LANES);
  }
}

template <class T>
using Tile = void (*)(const Grid<T>&, const typename T::Real*, typename T::Real*);

template <class T, int OUT, int STEP, int MOST>
struct Tiles {  // the function for each number of places up to MOST
  static Tile<T> find(int pixels) {
    return pixels == MOST ? tile<T, MOST, OUT, STEP> : Tiles<T, OUT, STEP, MOST - 1>::find(pixels);
  }
};
template <class T, int OUT, int STEP>
struct Tiles<T, OUT, STEP, 0> {
  static Tile<T> find(int) { return nullptr; }
};

template <class T, int OUT>
Tile<T> find_tile(int pixels, int64_t step) {
  constexpr int MOST = TILE / OUT > 16 ? 16 : TILE / OUT;
  switch (step) {
    case 16:
      return Tiles<T, OUT, 16, MOST>::find(pixels);
    case 32:
      return Tiles<T, OUT, 32, MOST>::find(pixels);
    case 64:
      return Tiles<T, OUT, 64, MOST>::find(pixels);
    default:
      return Tiles<T, OUT, 0, MOST>::find(pixels);
  }
}

template <class T>
void convolve(Grid<T> grid) {
  while (grid.outputs > 0) {
    const bool two = grid.outputs > LANES;
    const int most = two ? TILE / 2 : (TILE > 16 ? 16 : TILE);
    const int64_t parts = (grid.wide + most - 1) / most;
    for (int64_t part = 0, x = 0; part < parts; part++) {
      const int pixels = (grid.wide - x + parts - part - 1) / (parts - part);  // evenly shared
      Tile<T> run = two ? find_tile<T, 2>(pixels, grid.step) : find_tile<T, 1>(pixels, grid.step);
      for (int64_t y = 0; y < grid.high; y++)
        run(grid, grid.image + y * grid.line + x * grid.step, grid.to + y * grid.to_line + x * grid.to_step);
      x += pixels;
    }
    const int64_t done = two ? 2 : 1;  // blocks
    grid.weights += done * grid.block;
    grid.bias += done * LANES, grid.to += done * LANES, grid.outputs -= done * LANES;
  }
}

template <class R>
struct Picture {
  R* at;
  int64_t high, wide, depth;
};

// Copy an image into one with a margin, zeros around it and behind its channels
template <class R>
void pad(const Picture<const R>& from, const Picture<R>& to, int64_t top, int64_t left) {
  memset(to.at, 0, sizeof(R) * to.high * to.wide * to.depth);
  for (int64_t y = 0; y < from.high; y++) {
    if (y + top < 0 || y + top >= to.high) continue;
    const int64_t skip = left < 0 ? -left : 0, most = std::min(to.wide - left, from.wide);
    const R* source = from.at + (y * from.wide + skip) * from.depth;
    R* target = to.at + ((y + top) * to.wide + left + skip) * to.depth;
    if (from.depth == to.depth) {
      if (most > skip) memcpy(target, source, sizeof(R) * (most - skip) * from.depth);
    } else {
      for (int64_t x = skip; x < most; x++, source += from.depth, target += to.depth)
        for (int64_t c = 0; c < from.depth; c++) target[c] = source[c];
    }
  }
}

// What Python hands over to go forward; the same order in calls.py
template <class T>
struct Forward {
  const typename T::Real* x;
  const float* position;
  const typename T::Real* arranged;  // nullptr: mix loose knots
  const float *knots, *bias;
  Base base;
  typename T::Real* y;
};

template <class T>
void forward(const Layer& layer, const Forward<T>& io) {
  typedef typename T::Real Real;
  const Plan<T> plan(layer);
  const int64_t units = plan.row / T::PER_UNIT, image = plan.padded_h * plan.padded_w * plan.depth;
  const int64_t all_filters = plan.filter_blocks * LANES;
#pragma omp parallel num_threads(team())
  {
    const int64_t room = LANES * round_up(plan.channels * plan.taps, LANES);
    scratch.reserve(image * 4 + all_filters * plan.row * 8 + 8 * room + plan.splines * plan.active * sizeof(Active) +
                    (all_filters + LANES) * 4 + plan.taps * sizeof(Tap) + 1024);
    Real* padded = scratch.take<Real>(image);
    Real* mixed = scratch.take<Real>(all_filters * plan.row);
    uint32_t* weights = scratch.take<uint32_t>(plan.filter_blocks * units * LANES);
    Active* active = scratch.take<Active>(plan.splines * plan.active);
    float* biases = scratch.take<float>(all_filters + LANES);
    Tap* taps = scratch.take<Tap>(plan.taps);
    float* rows = scratch.take<float>(room);
    float* laid = scratch.take<float>(room);
    memset(rows, 0, 4 * room);
    if (io.arranged) memset(mixed, 0, sizeof(Real) * all_filters * plan.row);
    for (int64_t f = 0; f < all_filters + LANES; f++) biases[f] = io.bias && f < plan.filters ? io.bias[f] : 0;
    for (int64_t i = 0, tap = 0; i < plan.kernel_h; i++)
      for (int64_t j = 0; j < plan.kernel_w; j++, tap++)
        taps[tap] = {(i * plan.dilation_h * plan.padded_w + j * plan.dilation_w) * plan.depth,
                     tap * plan.depth / T::PER_UNIT};
    // fewer samples than threads share out their filters, or else the rows of their outputs
    const int64_t parts = std::max<int64_t>(1, omp_get_num_threads() / std::max<int64_t>(1, plan.samples)),
                  blocks = plan.filter_blocks;
    const bool by_filters = !io.arranged && blocks % parts == 0;
#pragma omp for schedule(static)
    for (int64_t task = 0; task < plan.samples * parts; task++) {
      const int64_t n = task / parts, part = task % parts;
      const int64_t first = by_filters ? blocks * part / parts : 0, last = by_filters ? blocks * (part + 1) / parts : blocks;
      const int64_t top = by_filters ? 0 : plan.out_height * part / parts;
      const int64_t bottom = by_filters ? plan.out_height : plan.out_height * (part + 1) / parts;
      touch(plan, io.position + n * plan.splines * plan.dims, active);
      if (io.arranged) {
        mix<T>(plan, io.arranged, active, mixed);
        filters_across<T>(plan, mixed, weights);
      } else {
        mix_across<T>(plan, {io.knots, io.base, rows, laid}, active, first, last, weights);
      }
      const Picture<const Real> source = {io.x + n * plan.height * plan.width * plan.channels, plan.height, plan.width,
                                          plan.channels};
      pad<Real>(source, {padded, plan.padded_h, plan.padded_w, plan.depth}, plan.pad_h, plan.pad_w);
      Grid<T> grid;
      grid.line = plan.stride_h * plan.padded_w * plan.depth, grid.step = plan.stride_w * plan.depth;
      grid.image = padded + top * grid.line;
      grid.high = bottom - top, grid.wide = plan.out_width;
      grid.taps = taps, grid.count = plan.taps;
      grid.weights = weights, grid.block = units * LANES, grid.units = plan.depth / T::PER_UNIT;
      grid.bias = biases + first * LANES;
      grid.to_line = plan.out_width * plan.filters, grid.to_step = plan.filters;
      grid.to = io.y + (n * plan.out_height + top) * grid.to_line + first * LANES;
      grid.outputs = std::min(plan.filters, last * LANES) - first * LANES;
      convolve<T>(grid);
    }
  }
}

// Backward

// The gradients of some samples' weights into their knots' and their positions', filter by filter: a filter's knots stay
// in the cache for all of them
template <class T>
void absorb(const Plan<T>& plan, int64_t samples, const typename T::Real* knots, const Active* active, const float* grad,
            float* knots_grad, float* position_grad) {
  const int64_t stride = plan.filters * plan.row;
  for (int64_t f = 0; f < plan.filters; f++, knots += plan.row, knots_grad += plan.row)
    for (int64_t n = 0; n < samples; n++) {
      const int64_t s = n * plan.splines + f * plan.splines / plan.filters;
      const float* from = grad + (n * plan.filters + f) * plan.row;
      for (int a = 0; a < plan.active; a++) {
        const Active& here = active[s * plan.active + a];
        const typename T::Real* knot = knots + here.row * stride;
        float* knot_grad = knots_grad + here.row * stride;
        const Vector value = broadcast(here.value);
        Vector dots = {};
        for (int64_t i = 0; i < plan.row; i += LANES) {
          const Vector g = load(from + i);
          dots += g * T::read(knot + i);
          store(knot_grad + i, load(knot_grad + i) + value * g);
        }
        float dot = 0;
        for (int i = 0; i < LANES; i++) dot += dots[i];
        position_grad[s * plan.dims + a / (plan.degree + 1)] += dot * here.slope;
      }
    }
}

// The sum over an image's places, added to what is there: (places, channels) -> (channels)
template <class T>
void add_up(const typename T::Real* image, int64_t places, int64_t channels, float* to) {
  int64_t c = 0;
  for (; c + LANES <= channels; c += LANES) {
    Vector sums[4] = {load(to + c)};
    for (int64_t p = 0; p < places; p++) sums[p % 4] += T::read(image + p * channels + c);
    store(to + c, sums[0] + sums[1] + (sums[2] + sums[3]));
  }
  for (; c < channels; c++)
    for (int64_t p = 0; p < places; p++) to[c] += T::to_float(image[p * channels + c]);
}

// What one thread needs to go backward
template <class T>
struct Backward : Plan<T> {
  typedef Plan<T> P;
  typedef typename T::Real Real;
  using P::channels, P::depth, P::dilation_h, P::dilation_w, P::dims, P::filters, P::height, P::kernel_h, P::kernel_w,
      P::out_height, P::out_width, P::pad_h, P::pad_w, P::row, P::splines, P::stride_h, P::stride_w, P::taps, P::width,
      P::width_f;
  static constexpr int PER_UNIT = T::PER_UNIT, TOGETHER = 4;  // samples whose gradients meet the knots at once

  bool narrow;  // few channels would leave most lanes empty
  int64_t wide, across, margin_h, margin_w, grad_h, grad_w;
  Real *padded, *pairs, *grad_pairs, *grad, *mixed;
  uint32_t* weights;
  float *filters_grad, *no_bias;
  Active* active;
  Tap* tap_list;

  explicit Backward(const Layer& layer) : P(layer) {
    const int64_t all_filters = this->filter_blocks * LANES, all_channels = this->channel_blocks * LANES;
    narrow = channels <= LANES / 4;
    wide = this->padded_w + (PER_UNIT - 1) * stride_w;
    across = (out_width + PER_UNIT - 1) / PER_UNIT;
    // a margin around the outputs' gradient, so that every input finds all the outputs it went into
    margin_h = (kernel_h - 1) * dilation_h / stride_h + 1;
    margin_w = (kernel_w - 1) * dilation_w / stride_w + 1;
    grad_h = std::max(height / stride_h + 2, out_height) + 2 * margin_h;
    grad_w = std::max(width / stride_w + 2, out_width) + 2 * margin_w;
    const int64_t image = this->padded_h * wide, filter = TOGETHER * filters * row;
    const int64_t units = this->channel_blocks * taps * width_f / PER_UNIT * LANES;
    scratch.reserve(sizeof(Real) *
                        (image * (depth + all_channels * PER_UNIT) + out_height * across * all_filters * PER_UNIT +
                         grad_h * grad_w * width_f + (all_filters + 2) * row) +
                    4 * (units + filter + all_channels + LANES) + TOGETHER * splines * P::active * sizeof(Active) +
                    taps * sizeof(Tap) + 1024);
    padded = scratch.take<Real>(image * depth);
    pairs = scratch.take<Real>(image * all_channels * PER_UNIT);
    grad_pairs = scratch.take<Real>(out_height * across * all_filters * PER_UNIT);
    grad = scratch.take<Real>(grad_h * grad_w * width_f);
    mixed = scratch.take<Real>((all_filters + 2) * row);
    weights = scratch.take<uint32_t>(units);
    filters_grad = scratch.take<float>(filter);
    no_bias = scratch.take<float>(all_channels + LANES);
    active = scratch.take<Active>(TOGETHER * splines * P::active);
    tap_list = scratch.take<Tap>(taps);
    memset(mixed, 0, sizeof(Real) * (all_filters + 2) * row);
    memset(filters_grad, 0, 4 * filter);
    memset(no_bias, 0, 4 * (all_channels + LANES));
  }

  // Units of neighbours: every place of the image beside the one a stride further, outputs' gradients two by two
  void pair_up(const Real* x, const Real* dy) {
    pad<Real>({x, height, width, channels}, {padded, this->padded_h, wide, depth}, pad_h, pad_w);
    const int64_t all_channels = this->channel_blocks * LANES, all_filters = this->filter_blocks * LANES;
    for (int64_t y = 0; narrow && y < this->padded_h; y++)
      for (int64_t i = 0; i < this->padded_w * channels; i++)
        for (int part = 0; part < PER_UNIT; part++) {
          const int64_t x = i / channels + part * stride_w;
          pairs[(y * wide * channels + i) * PER_UNIT + part] = padded[(y * wide + x) * depth + i % channels];
        }
    for (int64_t y = 0; !narrow && y < this->padded_h; y++)
      for (int64_t x = 0; x < this->padded_w; x++)
        for (int64_t c = 0; c < all_channels; c += LANES) {
          const Real* from = padded + (y * wide + x) * depth + c;
          interleave<T>(from, from + stride_w * depth, depth - c, pairs + ((y * wide + x) * all_channels + c) * PER_UNIT);
        }
    for (int64_t y = 0; y < out_height; y++)
      for (int64_t q = 0; q < across; q++)
        for (int64_t f = 0; f < all_filters; f += LANES) {
          const Real* from = dy + (y * out_width + PER_UNIT * q) * filters + f;
          const bool last = PER_UNIT * q + PER_UNIT > out_width;  // its neighbour is beyond the edge
          Real* to = grad_pairs + ((y * across + q) * all_filters + f) * PER_UNIT;
          interleave<T>(from, last ? from : from + filters, filters - f, to);
          for (int i = 0; last && i < LANES; i++) to[PER_UNIT * i + PER_UNIT - 1] = 0;
        }
  }

  // The gradient of one sample's weights, from its units of neighbours
  void weights_gradient(float* to) {
    if (narrow) return narrow_weights_gradient(to);
    const int64_t all_channels = this->channel_blocks * LANES, all_filters = this->filter_blocks * LANES;
    for (int64_t f = 0; f < all_filters; f += LANES)
      for (int64_t c = 0; c < all_channels; c += LANES)
        for (int64_t tap = 0; tap < taps; tap++) {
          const int64_t down = tap / kernel_w * dilation_h, right = tap % kernel_w * dilation_w;
          Vector sum[LANES] = {};
          for (int64_t y = 0; y < out_height; y++) {
            const Real* from = pairs + (((y * stride_h + down) * wide + right) * all_channels + c) * PER_UNIT;
            const Real* g = grad_pairs + (y * across * all_filters + f) * PER_UNIT;
            for (int64_t q = 0; q < across; q++) {
              const Units here = *reinterpret_cast<const Units*>(from);
#pragma GCC unroll 16
              for (int i = 0; i < LANES; i++) sum[i] = T::multiply_add(sum[i], here, g + i * PER_UNIT);
              from += PER_UNIT * stride_w * all_channels * PER_UNIT;
              g += all_filters * PER_UNIT;
            }
          }
          for (int i = 0; i < LANES && f + i < filters; i++)
            write_some<Float>(to + (f + i) * row + tap * depth + c, sum[i], depth - c);
        }
  }

  // The same for images with few channels: filters across lanes, some taps and channels at a time
  void narrow_weights_gradient(float* to) {
    const int64_t all_filters = this->filter_blocks * LANES, inputs = taps * channels;
    for (int64_t f = 0; f < all_filters; f += LANES)
      for (int64_t first = 0; first < inputs; first += LANES) {
        int64_t offset[LANES];
        for (int i = 0; i < LANES; i++) {
          const int64_t input = std::min(first + i, inputs - 1), tap = input / channels;
          const int64_t place = tap / kernel_w * dilation_h * wide + tap % kernel_w * dilation_w;
          offset[i] = (place * channels + input % channels) * PER_UNIT;
        }
        Vector sum[LANES] = {};
        for (int64_t y = 0; y < out_height; y++) {
          const Real* from = pairs + y * stride_h * wide * channels * PER_UNIT;
          const Real* g = grad_pairs + (y * across * all_filters + f) * PER_UNIT;
          for (int64_t q = 0; q < across; q++) {
            const Units here = *reinterpret_cast<const Units*>(g);
#pragma GCC unroll 16
            for (int i = 0; i < LANES; i++) sum[i] = T::multiply_add(sum[i], here, from + offset[i]);
            from += PER_UNIT * stride_w * channels * PER_UNIT;
            g += all_filters * PER_UNIT;
          }
        }
        for (int64_t input = first; input < std::min(first + LANES, inputs); input++)
          for (int64_t i = 0; i < LANES && f + i < filters; i++)
            to[(f + i) * row + input / channels * depth + input % channels] = sum[input - first][i];
      }
  }

  // The gradient of one sample's image. Row r went into the outputs (r + pad - i dilation) / stride where that is whole,
  // so rows and columns that leave the same remainder by the strides are one convolution of the outputs' gradient.
  void image_gradient(const Real* dy, Real* dx) {
    pad<Real>({dy, out_height, out_width, filters}, {grad, grad_h, grad_w, width_f}, margin_h, margin_w);
    Grid<T> grid;
    grid.image = grad, grid.line = grad_w * width_f, grid.step = width_f;
    grid.taps = tap_list;
    grid.weights = weights, grid.block = taps * width_f / PER_UNIT * LANES, grid.units = width_f / PER_UNIT;
    grid.bias = no_bias;
    grid.to_line = stride_h * width * channels, grid.to_step = stride_w * channels, grid.outputs = channels;
    for (int64_t a = 0; a < stride_h && a < height; a++)
      for (int64_t b = 0; b < stride_w && b < width; b++) {
        grid.count = 0;
        for (int64_t tap = 0; tap < taps; tap++) {
          const int64_t up = a + pad_h - tap / kernel_w * dilation_h, left = b + pad_w - tap % kernel_w * dilation_w;
          if (up % stride_h || left % stride_w) continue;
          const int64_t from = (up / stride_h + margin_h) * grad_w + left / stride_w + margin_w;
          tap_list[grid.count++] = {from * width_f, tap * width_f / PER_UNIT};
        }
        grid.high = (height - a + stride_h - 1) / stride_h, grid.wide = (width - b + stride_w - 1) / stride_w;
        grid.to = dx + (a * width + b) * channels;
        convolve<T>(grid);
      }
  }
};

// What Python hands over to go backward, and where the gradients go; the same order in calls.py
template <class T>
struct Gradients {
  const typename T::Real* x;
  const float* position;
  const typename T::Real *knots, *y_grad;
  typename T::Real* x_grad;  // nullptr: nobody asks
  float *position_grad, *knots_grad, *bias_grad;
  float* partial;   // the threads' shares of the last two
  int64_t threads;  // for as many there is room
};

template <class T>
void backward(const Layer& layer, const Gradients<T>& io) {
  const Plan<T> plan(layer);
  const int64_t curve = plan.rows * plan.filters * plan.row, share = curve + plan.filters;  // the bias's gradient behind
  const int64_t image = plan.height * plan.width * plan.channels, output = plan.out_height * plan.out_width * plan.filters;
  const int64_t coordinates = plan.splines * plan.dims, sample = plan.filters * plan.row;
  memset(io.position_grad, 0, 4 * plan.samples * coordinates);
#pragma omp parallel num_threads(team(io.threads))
  {
    Backward<T> work(layer);
    const int64_t team = omp_get_num_threads(), me = omp_get_thread_num();
    float* my_knots = io.partial + me * share;
    float* my_bias = my_knots + curve;
    memset(my_knots, 0, 4 * share);
    const int64_t begin = plan.samples * me / team, end = plan.samples * (me + 1) / team;
    for (int64_t first = begin; first < end; first += work.TOGETHER) {
      const int64_t count = std::min<int64_t>(work.TOGETHER, end - first);
      for (int64_t i = 0; i < count; i++) {
        const int64_t n = first + i;
        Active* active = work.active + i * plan.splines * plan.active;
        touch(plan, io.position + n * coordinates, active);
        work.pair_up(io.x + n * image, io.y_grad + n * output);
        work.weights_gradient(work.filters_grad + i * sample);
        if (io.x_grad) {
          mix<T>(plan, io.knots, active, work.mixed);
          channels_across<T>(plan, work.mixed, work.weights);
          work.image_gradient(io.y_grad + n * output, io.x_grad + n * image);
        }
        if (io.bias_grad) add_up<T>(io.y_grad + n * output, plan.out_height * plan.out_width, plan.filters, my_bias);
      }
      absorb<T>(plan, count, io.knots, work.active, work.filters_grad, my_knots, io.position_grad + first * coordinates);
    }
#pragma omp barrier
    // threads' shares together, in the order that torch keeps: (rows, filters, channels, taps)
#pragma omp for schedule(static)
    for (int64_t r = 0; r < plan.rows * plan.filters; r++)
      for (int64_t c = 0; c < plan.channels; c++)
        for (int64_t tap = 0; tap < plan.taps; tap++) {
          float sum = 0;
          for (int64_t t = 0; t < team; t++) sum += io.partial[t * share + r * plan.row + tap * plan.depth + c];
          io.knots_grad[(r * plan.channels + c) * plan.taps + tap] = sum;
        }
#pragma omp single
    for (int64_t f = 0; io.bias_grad && f < plan.filters; f++) {
      io.bias_grad[f] = 0;
      for (int64_t t = 0; t < team; t++) io.bias_grad[f] += io.partial[t * share + curve + f];
    }
  }
}

// Pooling, beside the convolution because decisions read every image that one convolves

// The mean over an image's places: (N, places, channels) -> (N, channels)
template <class T>
void pool(int64_t samples, int64_t places, int64_t channels, const typename T::Real* x, float* to) {
#pragma omp parallel for schedule(static) num_threads(team()) if (samples > 1)
  for (int64_t n = 0; n < samples; n++) {
    float* means = to + n * channels;
    memset(means, 0, 4 * channels);
    add_up<T>(x + n * places * channels, places, channels, means);
    for (int64_t c = 0; c < channels; c++) means[c] /= places;
  }
}

// The mean's gradient, added to what is there: (N, channels) -> (N, places, channels)
template <class T>
void spread(int64_t samples, int64_t places, int64_t channels, const float* grad, typename T::Real* to) {
  const float each = 1.0f / places;
#pragma omp parallel for schedule(static) num_threads(team()) if (samples > 1)
  for (int64_t n = 0; n < samples; n++) {
    typename T::Real* image = to + n * places * channels;
    int64_t c = 0;
    for (; c + LANES <= channels; c += LANES) {
      const Vector share = load(grad + n * channels + c) * broadcast(each);
      for (int64_t p = 0; p < places; p++) T::write(image + p * channels + c, T::read(image + p * channels + c) + share);
    }
    for (; c < channels; c++)
      for (int64_t p = 0; p < places; p++) {
        typename T::Real& at = image[p * channels + c];
        at = T::from_float(T::to_float(at) + grad[n * channels + c] * each);
      }
  }
}

// Knots as torch keeps them, (rows, filters, channels, taps), to (rows, filters, row), base included
template <class T>
void arrange(const Layer& layer, const float* knots, const Base& base, typename T::Real* to) {
  const Plan<T> plan(layer);
#pragma omp parallel for schedule(static) num_threads(team())
  for (int64_t r = 0; r < plan.rows * plan.filters; r++) {
    const float* knot = knots + r * plan.channels * plan.taps;
    memset(to + r * plan.row, 0, sizeof(*to) * plan.row);
    for (int64_t t = 0; t < plan.taps; t++)
      for (int64_t c = 0; c < plan.channels; c++)
        to[r * plan.row + t * plan.depth + c] = T::from_float(knot[c * plan.taps + t] + base(r % plan.filters, c, t));
  }
}

}  // namespace

// Positions from features, when nothing is to be learnt; the same order in calls.py
struct Decision {
  int64_t samples, features, coordinates, knots, degree;   // knots: of decision splines, 0 if there are none
  const float *basis, *weight, *spline, *mean, *variance;  // what there is not is nullptr
  float epsilon, bound, slope;
};

extern "C" void propose(const Decision* decision, const float* features, const float* parent, float* to) {
  const Decision& d = *decision;
  const Basis basis = {d.knots, d.degree, d.basis};
  for (int64_t n = 0; n < d.samples; n++)
    for (int64_t c = 0; c < d.coordinates; c++) {
      const float* x = features + n * d.features;
      const auto dot = [&](const float* theta) {
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t m = 0; m < d.features; m++) sum += theta[m] * x[m];
        return sum;
      };
      float raw = d.weight ? dot(d.weight + c * d.features) : 0;
      if (d.spline) {
        const Spot spot = locate(basis, parent ? parent[n * d.coordinates + c] : 0.5f);
        for (int a = 0; a <= d.degree; a++)
          raw += evaluate(basis, a, spot.t).value * dot(d.spline + ((spot.span + a) * d.coordinates + c) * d.features);
      }
      if (d.mean) {
        raw = (raw - d.mean[c]) / std::sqrt(d.variance[c] + d.epsilon);
        raw /= std::sqrt(1 + raw / d.bound * (raw / d.bound));
      }
      to[n * d.coordinates + c] = 1 / (1 + std::exp(-d.slope * raw));
    }
}

#define EXPORT(KIND, name)                                                                                              \
  extern "C" void pool_##name(int64_t samples, int64_t places, int64_t channels, const KIND::Real* x, float* to) {      \
    pool<KIND>(samples, places, channels, x, to);                                                                       \
  }                                                                                                                     \
  extern "C" void spread_##name(int64_t samples, int64_t places, int64_t channels, const float* grad, KIND::Real* to) { \
    spread<KIND>(samples, places, channels, grad, to);                                                                  \
  }                                                                                                                     \
  extern "C" int64_t row_##name(const Layer* layer) { return Plan<KIND>(*layer).row; }                                  \
  extern "C" void arrange_##name(const Layer* layer, const float* knots, const Base* base, KIND::Real* to) {            \
    arrange<KIND>(*layer, knots, *base, to);                                                                            \
  }                                                                                                                     \
  extern "C" void forward_##name(const Layer* layer, const Forward<KIND>* io) { forward<KIND>(*layer, *io); }           \
  extern "C" void backward_##name(const Layer* layer, const Gradients<KIND>* io) { backward<KIND>(*layer, *io); }

EXPORT(Float, float32)
#if defined(__AVX512BF16__)
EXPORT(Bfloat, bfloat16)
#endif
