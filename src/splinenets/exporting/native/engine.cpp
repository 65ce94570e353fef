// Inference of SplineNets, one image at a time, without a framework: a program of a dozen kinds of steps is executed in one
// call.
//
// Images are stored in blocks of 16 channels, (blocks, height, width, 16), with a margin of zeros as wide as the widest
// padding that a convolution wants, so that no inner loop looks at borders. Filters are stored for the same blocks.

#define LANES 16  // channels in a block
#include "splines.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

namespace {

// How many vectors of sums fit into the registers beside filters and pixels.
#if defined(__AVX512F__)
constexpr int SUMS = 16;
#else
constexpr int SUMS = 4;
#endif

inline Vector relu(Vector v) { return Vector{} > v ? Vector{} : v; }  // what is not a number stays so

inline float sum(Vector v) {
  float parts[LANES];
  store(parts, v);
  for (int half = LANES / 2; half; half /= 2)
    for (int i = 0; i < half; i++) parts[i] += parts[i + half];
  return parts[0];
}

// Where a value lies, as the program describes it; offsets and strides in floats. Small values are computed by every
// thread for itself (`own`), because waiting for each other would take longer.
struct Image {
  int64_t offset, channels, height, width, margin, own;

  int64_t blocks() const { return (channels + LANES - 1) / LANES; }
  int64_t row() const { return (width + 2 * margin) * LANES; }
  int64_t block() const { return (height + 2 * margin) * row(); }
  int64_t start() const { return offset + margin * row() + margin * LANES; }
};

// Parameters as they are stored: (rows, length) of a type, with a scale for each row where they are whole numbers.
struct Matrix {
  int64_t type, offset, scale;  // bytes; a scale of -1: none
};

#define KINDS INPUT, CONV, LINEAR, MAXPOOL, SUM, MEAN, ADD, SUBSAMPLE, PROJECT, LOCATE, MIX, OUTPUT
enum Kind : int64_t { KINDS };

// Every thread does these alone, into memory of its own, and nobody waits.
bool everyone(int64_t kind) { return kind == MEAN || kind == LOCATE || kind == MIX; }

// One step. All steps have the same fields, of which each uses some: the program is a plain array of 64-bit numbers.
struct Step {
  int64_t kind;
  Image input, output, other;  // `other`: what is added, or the parent's positions; its offset is -1 where there is none
  int64_t relu;
  int64_t kernel_h, kernel_w, stride, pad_h, pad_w, dilation;
  Matrix weight;  // filters, knots or decision parameters
  int64_t sums;   // where every thread's part of the sum of each channel, or of projections, lies; -1: nobody asks
  int64_t mixed;  // where in the arena filters of this sample lie; -1: they are constant
  int64_t bias;   // bytes; -1: none
  int64_t basis;  // where in the arena the active knots and their weights lie; -1: there is no spline
  int64_t splines, dims, knots, degree, rows;  // rows: of one knot, in `weight`
  int64_t length;                              // of a row
  int64_t matching, bounded, decision_knots, decision_degree;
  double diffusion, slope;
};

inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

// Wait for a moment in which the processor does nothing else: falling asleep and waking up takes longer than most steps.
// False if it did not happen within half a millisecond.
template <class F>
bool spin(F happened) {
  for (int i = 0; i < 2048; i++)
    if (happened()) return true;
  auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(500);
  do {
    for (int i = 0; i < 64; i++) {
      if (happened()) return true;
      relax();
    }
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

// The threads that work on the same program, and where they wait for each other.
struct Team {
  int size;
  std::atomic<int64_t> arrived{0}, round{0};

  void wait() {
    if (size == 1) return;
    int64_t now = round.load(std::memory_order_acquire);
    if (arrived.fetch_add(1, std::memory_order_acq_rel) == size - 1) {
      arrived.store(0, std::memory_order_relaxed);
      round.store(now + 1, std::memory_order_release);
      return;
    }
    while (!spin([&] { return round.load(std::memory_order_acquire) != now; })) std::this_thread::yield();
  }
};

struct Share {
  int64_t begin, end;
};

struct Worker {
  const char* weights;
  const float* const* matrices;  // of the basis, for each degree
  float* const* arenas;          // one for each thread; what all share lies in the first
  int me, size;

  Share share(int64_t count) const { return {count * me / size, count * (me + 1) / size}; }

  float* own(int64_t offset) const { return arenas[me] + offset; }

  float* at(int64_t offset) const { return arenas[0] + offset; }

  float* start(const Image& x) const { return arenas[x.own ? me : 0] + x.start(); }

  // What all threads have added up together.
  float total(int64_t offset) const {
    float sum = 0;
    for (int t = 0; t < size; t++) sum += arenas[t][offset];
    return sum;
  }

  template <class T>
  const T* parameter(int64_t offset) const {
    return reinterpret_cast<const T*>(weights + offset);
  }

  // f(pointer to the first stored number) for the type that the matrix has
  template <class F>
  void typed(const Matrix& matrix, F f) const {
    if (matrix.type == 0)
      f(parameter<float>(matrix.offset));
    else if (matrix.type == 1)
      f(parameter<uint16_t>(matrix.offset));
    else
      f(parameter<int8_t>(matrix.offset));
  }

  float scale(const Matrix& matrix, int64_t row) const {
    return matrix.scale < 0 ? 1.0f : parameter<float>(matrix.scale)[row];
  }

  // ---- convolutions

  // Some pixels of one row, and blocks of filters: where they read and write. What there is not is nullptr.
  struct Strip {
    const float *x, *w, *bias, *more;
    float *y, *channel_sums;
  };

  // A tile of T pixels of one row and OB blocks of filters.
  template <int OB, int T, int STRIDE>
  void tile(const Step& s, const Strip& at) const {
    const int64_t filters = s.length * LANES;  // of one block
    const float* w = at.w;
    Vector sums[OB][T];
#pragma GCC unroll 2
    for (int b = 0; b < OB; b++) {
      Vector start = at.bias ? load(at.bias + b * LANES) : Vector{};
#pragma GCC unroll 16
      for (int t = 0; t < T; t++) sums[b][t] = start;
    }
    for (int64_t kh = 0; kh < s.kernel_h; kh++)
      for (int64_t kw = 0; kw < s.kernel_w; kw++) {
        const float* pixel = at.x + kh * s.dilation * s.input.row() + kw * s.dilation * LANES;
        for (int64_t first = 0; first < s.input.channels; first += LANES, pixel += s.input.block()) {
          int64_t count = std::min<int64_t>(LANES, s.input.channels - first);
          for (int64_t c = 0; c < count; c++, w += LANES) {
            Vector filter[OB];
#pragma GCC unroll 2
            for (int b = 0; b < OB; b++) filter[b] = load(w + b * filters);
#pragma GCC unroll 16
            for (int t = 0; t < T; t++) {
              Vector value = broadcast(pixel[t * STRIDE * LANES + c]);
#pragma GCC unroll 2
              for (int b = 0; b < OB; b++) sums[b][t] += filter[b] * value;
            }
          }
        }
      }
#pragma GCC unroll 2
    for (int b = 0; b < OB; b++) {
      Vector all{};
#pragma GCC unroll 16
      for (int t = 0; t < T; t++) {
        Vector v = sums[b][t];
        if (at.more) v += load(at.more + b * s.other.block() + t * LANES);
        if (s.relu) v = relu(v);
        store(at.y + b * s.output.block() + t * LANES, v);
        all += v;
      }
      if (at.channel_sums) store(at.channel_sums + b * LANES, load(at.channel_sums + b * LANES) + all);
    }
  }

  template <int OB, int T, int STRIDE>
  void row(const Step& s, Strip at, int64_t left) const {
    for (; left >= T; left -= T, at.x += T * STRIDE * LANES, at.y += T * LANES) {
      tile<OB, T, STRIDE>(s, at);
      if (at.more) at.more += T * LANES;
    }
    if constexpr (T > 1)
      if (left) row<OB, T / 2, STRIDE>(s, at, left);
  }

  // A thread has some rows of one block of filters after the other; it mixes the filters of these blocks alone, for itself.
  bool pairs(const Step& s) const { return SUMS >= 16 && s.output.blocks() % (2 * size) == 0; }

  Share units(const Step& s) const { return share(s.output.blocks() / (pairs(s) ? 2 : 1) * s.output.height); }

  Share blocks(const Step& s) const {
    Share mine = units(s);
    int64_t many = pairs(s) ? 2 : 1;
    if (mine.begin == mine.end) return {0, 0};
    return {mine.begin / s.output.height * many, (mine.end - 1) / s.output.height * many + many};
  }

  template <int OB, int STRIDE>
  void rows(const Step& s) const {
    const float* x = start(s.input) - s.pad_h * s.input.row() - s.pad_w * LANES;
    const float* w = s.mixed >= 0 ? own(s.mixed) : parameter<float>(s.weight.offset);
    int64_t filters = s.length * LANES;  // of one block
    Share mine = units(s);
    for (int64_t unit = mine.begin; unit < mine.end; unit++) {
      int64_t b = unit / s.output.height * OB, h = unit % s.output.height;
      Strip at;
      at.x = x + h * STRIDE * s.input.row(), at.w = w + b * filters;
      at.y = start(s.output) + b * s.output.block() + h * s.output.row();
      at.more = s.other.offset < 0 ? nullptr : start(s.other) + b * s.other.block() + h * s.other.row();
      at.bias = s.bias < 0 ? nullptr : parameter<float>(s.bias) + b * LANES;
      at.channel_sums = s.sums < 0 ? nullptr : own(s.sums) + b * LANES;
      row<OB, SUMS / OB, STRIDE>(s, at, s.output.width);
    }
  }

  void convolve(const Step& s) const {
    if (s.sums >= 0) std::memset(own(s.sums), 0, s.output.blocks() * LANES * sizeof(float));
    if (s.stride == 1)
      pairs(s) ? rows<2, 1>(s) : rows<1, 1>(s);
    else
      pairs(s) ? rows<2, 2>(s) : rows<1, 2>(s);
  }

  // ---- splines

  // Active knots of coordinate c: their number, then their weights.
  struct Active {
    int64_t* first;
    float* values;
  };

  Active active(const Step& s, int64_t c) const {
    char* place = reinterpret_cast<char*>(own(s.basis)) + c * 64;
    return {reinterpret_cast<int64_t*>(place), reinterpret_cast<float*>(place + 8)};
  }

  // The dot product of a stored row and an image, or of those of its pieces: all of a vector, or the rows of an image.
  template <class T>
  float dot(const T* stored, const Image& x, Share pieces) const {
    Vector sums[4] = {};
    int64_t length = x.width * LANES;
    for (int64_t piece = pieces.begin; piece < pieces.end; piece++) {
      const float* from = start(x) + piece / x.height * x.block() + piece % x.height * x.row();
      const T* row = stored + piece * length;
      int64_t j = 0;
      for (; j + 4 * LANES <= length; j += 4 * LANES)
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) sums[i] += load(row + j + i * LANES) * load(from + j + i * LANES);
      for (; j < length; j += LANES) sums[0] += load(row + j) * load(from + j);
    }
    return sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
  }

  template <class T>
  float dot(const T* stored, const Image& x) const {
    if (x.margin) return dot(stored, x, {0, x.blocks() * x.height});
    Image flat{x.offset, LANES, 1, x.blocks() * x.height * x.width, 0, x.own};
    return dot(stored, flat, {0, 1});
  }

  float inherited(const Step& s, int64_t c) const {
    if (s.other.offset < 0) return 0.5f;
    const float* parent = start(s.other);
    if (s.matching < 0) return parent[c];
    const float* match = parameter<float>(s.matching) + c * s.other.channels;
    float position = 0;
    for (int64_t p = 0; p < s.other.channels; p++) position += match[p] * parent[p];
    return position;
  }

  // The decision parameters' answer to an image, or to pieces of it.
  template <class T>
  float project(const Step& s, const T* theta, int64_t c, Share pieces) const {
    const auto response = [&](int64_t row) { return scale(s.weight, row) * dot(theta + row * s.length, s.input, pieces); };
    if (!s.decision_knots) return response(c);
    const Basis basis = {s.decision_knots, s.decision_degree, matrices[s.decision_degree]};
    const Spot spot = ::locate(basis, inherited(s, c));
    float z = 0;
    for (int a = 0; a <= basis.degree; a++)
      z += evaluate(basis, a, spot.t).value * response((spot.span + a) * s.output.channels + c);
    return z;
  }

  // Projections of a large image: every thread takes a part of its features.
  void project(const Step& s) const {
    Share mine = share(s.input.blocks() * s.input.height);
    typed(s.weight, [&](auto* theta) {
      for (int64_t c = 0; c < s.output.channels; c++) own(s.sums)[c] = project(s, theta, c, mine);
    });
  }

  void locate(const Step& s) const {
    float* position = start(s.output);
    typed(s.weight, [&](auto* theta) {
      for (int64_t c = 0; c < s.output.channels; c++) {
        float z = parameter<float>(s.bias)[c];
        z += s.sums >= 0 ? total(s.sums + c) : project(s, theta, c, {0, s.input.blocks()});
        if (s.bounded) z /= std::sqrt(1 + z * z);
        float proposal = 1 / (1 + std::exp(-float(s.slope) * z));
        float before = s.diffusion == 1 ? 0 : inherited(s, c);
        position[c] = s.diffusion == 1 ? proposal : before + float(s.diffusion) * (proposal - before);
        Active found = active(s, c);
        const Basis basis = {s.knots, s.degree, matrices[s.degree]};
        const Spot spot = ::locate(basis, position[c]);
        *found.first = spot.span;
        for (int a = 0; a <= s.degree; a++) found.values[a] = evaluate(basis, a, spot.t).value;
      }
    });
  }

  // The rows of `weight` that a spline touches, and how much of each: (d + 1) for each of its dims.
  int64_t gather(const Step& s, int64_t spline, int64_t* rows, float* shares) const {
    int64_t count = 0;
    for (int64_t dim = 0; dim < s.dims; dim++) {
      Active found = active(s, spline * s.dims + dim);
      for (int64_t a = 0; a <= s.degree; a++, count++) {
        rows[count] = dim * s.knots + *found.first + a;
        shares[count] = found.values[a] / float(s.dims);
      }
    }
    return count;
  }

  static constexpr int MOST = 64;  // knots that a spline touches: more than any spec asks for

  // Filters of this sample. With one spline, knots are stored as filters are: (K, blocks, length, 16).
  template <class T>
  void mix_together(const Step& s, const T* knots) const {
    int64_t rows[MOST];
    float shares[MOST];
    int64_t count = gather(s, 0, rows, shares), block = s.length * LANES;
    Share mine = blocks(s);
    for (int64_t b = mine.begin; b < mine.end; b++) {
      const T* from[MOST];
      Vector part[MOST];
      for (int64_t a = 0; a < count; a++) {
        from[a] = knots + (rows[a] * s.output.blocks() + b) * block;
        part[a] = broadcast(shares[a]);
        if (s.weight.scale >= 0) part[a] *= load(parameter<float>(s.weight.scale) + rows[a] * s.rows + b * LANES);
      }
      float* to = own(s.mixed) + b * block;
      if (count == 3)
        for (int64_t j = 0; j < block; j += LANES)
          store(to + j, part[0] * load(from[0] + j) + part[1] * load(from[1] + j) + part[2] * load(from[2] + j));
      else
        for (int64_t j = 0; j < block; j += LANES) {
          Vector v{};
          for (int64_t a = 0; a < count; a++) v += part[a] * load(from[a] + j);
          store(to + j, v);
        }
    }
  }

  // With several splines, knots are stored filter by filter, (filters, K, length), and filters meet in blocks afterwards.
  template <class T>
  void mix_apart(const Step& s, const T* knots) const {
    int64_t all = s.dims * s.knots, per_spline = s.rows / s.splines;
    Share mine = blocks(s);
    for (int64_t b = mine.begin; b < mine.end; b++) {
      const T* from[LANES][MOST];
      float shares[LANES][MOST];
      int64_t count = 0, filters = std::min<int64_t>(LANES, s.rows - b * LANES);
      for (int64_t f = 0; f < filters; f++) {
        int64_t rows[MOST], filter = b * LANES + f;
        count = gather(s, filter / per_spline, rows, shares[f]);
        for (int64_t a = 0; a < count; a++) {
          from[f][a] = knots + (filter * all + rows[a]) * s.length;
          shares[f][a] *= scale(s.weight, filter * all + rows[a]);
        }
      }
      float* to = own(s.mixed) + b * s.length * LANES;
      for (int64_t j = 0; j < s.length; j += LANES, to += LANES * LANES) {
        Vector r[LANES] = {};
        if (filters == LANES && count == 3) {
#pragma GCC unroll 16
          for (int f = 0; f < LANES; f++)
            r[f] = shares[f][0] * load(from[f][0] + j) + shares[f][1] * load(from[f][1] + j) +
                   shares[f][2] * load(from[f][2] + j);
        } else {
          for (int64_t f = 0; f < filters; f++)
            for (int64_t a = 0; a < count; a++) r[f] += shares[f][a] * load(from[f][a] + j);
        }
        transpose(r, LANES, to);
      }
    }
  }

  // ---- everything else

  void linear(const Step& s) const {
    int64_t rows[MOST] = {0};
    float shares[MOST] = {1};
    int64_t count = s.basis < 0 ? 1 : gather(s, 0, rows, shares);
    Share mine = share(s.output.channels);
    typed(s.weight, [&](auto* weight) {
      for (int64_t o = mine.begin; o < mine.end; o++) {
        float y = s.bias < 0 ? 0 : parameter<float>(s.bias)[o];
        for (int64_t a = 0; a < count; a++) {
          int64_t row = rows[a] * s.rows + o;
          y += shares[a] * scale(s.weight, row) * dot(weight + row * s.length, s.input);
        }
        start(s.output)[o] = s.relu ? std::max(y, 0.0f) : y;
      }
    });
  }

  void pool(const Step& s) const {
    Share mine = share(s.output.blocks() * s.output.height);
    for (int64_t unit = mine.begin; unit < mine.end; unit++) {
      int64_t b = unit / s.output.height, h = unit % s.output.height;
      float* y = start(s.output) + b * s.output.block() + h * s.output.row();
      for (int64_t w = 0; w < s.output.width; w++, y += LANES) {
        Vector most = broadcast(-INFINITY);
        for (int64_t i = 0; i < s.kernel_h; i++)
          for (int64_t j = 0; j < s.kernel_w; j++) {
            int64_t r = h * s.stride - s.pad_h + i, c = w * s.stride - s.pad_w + j;
            if (r < 0 || c < 0 || r >= s.input.height || c >= s.input.width) continue;
            Vector v = load(start(s.input) + b * s.input.block() + r * s.input.row() + c * LANES);
            most = (v > most) | (v != v) ? v : most;  // what is not a number stays so
          }
        store(y, s.relu ? relu(most) : most);
      }
    }
  }

  // Every thread's part of the sum of each channel.
  void add_up(const Step& s) const {
    std::memset(own(s.sums), 0, s.input.blocks() * LANES * sizeof(float));
    Share mine = share(s.input.blocks() * s.input.height);
    for (int64_t unit = mine.begin; unit < mine.end; unit++) {
      int64_t b = unit / s.input.height, h = unit % s.input.height;
      const float* x = start(s.input) + b * s.input.block() + h * s.input.row();
      Vector all = load(own(s.sums) + b * LANES);
      for (int64_t w = 0; w < s.input.width; w++) all += load(x + w * LANES);
      store(own(s.sums) + b * LANES, all);
    }
  }

  void mean(const Step& s) const {
    float share = 1 / float(s.input.height * s.input.width);
    for (int64_t c = 0; c < s.output.channels; c++) start(s.output)[c] = total(s.sums + c) * share;
  }

  // Every stride-th pixel; channels that `in` does not have are 0.
  void subsample(const Step& s) const {
    Share mine = share(s.output.blocks() * s.output.height);
    for (int64_t unit = mine.begin; unit < mine.end; unit++) {
      int64_t b = unit / s.output.height, h = unit % s.output.height;
      float* y = start(s.output) + b * s.output.block() + h * s.output.row();
      const float* x = start(s.input) + b * s.input.block() + h * s.stride * s.input.row();
      for (int64_t w = 0; w < s.output.width; w++)
        store(y + w * LANES, b < s.input.blocks() ? load(x + w * s.stride * LANES) : Vector{});
    }
  }

  void add(const Step& s) const {
    Share mine = share(s.output.blocks() * s.output.height);
    for (int64_t unit = mine.begin; unit < mine.end; unit++) {
      int64_t b = unit / s.output.height, h = unit % s.output.height;
      const float* x = start(s.input) + b * s.input.block() + h * s.input.row();
      const float* more = s.other.offset < 0 ? nullptr : start(s.other) + b * s.other.block() + h * s.other.row();
      float* y = start(s.output) + b * s.output.block() + h * s.output.row();
      for (int64_t w = 0; w < s.output.width * LANES; w += LANES) {
        Vector v = more ? load(x + w) + load(more + w) : load(x + w);
        store(y + w, s.relu ? relu(v) : v);
      }
    }
  }

  void input(const Step& s, const float* image) const {
    Share mine = share(s.output.channels);
    for (int64_t c = mine.begin; c < mine.end; c++)
      for (int64_t h = 0; h < s.output.height; h++) {
        float* to = start(s.output) + c / LANES * s.output.block() + h * s.output.row() + c % LANES;
        const float* from = image + (c * s.output.height + h) * s.output.width;
        for (int64_t w = 0; w < s.output.width; w++) to[w * LANES] = from[w];
      }
  }

  void run(const Step& s, const float* image, float* logits) const {
    switch (s.kind) {
      case INPUT:
        input(s, image);
        break;
      case CONV:
        convolve(s);
        break;
      case LINEAR:
        linear(s);
        break;
      case MAXPOOL:
        pool(s);
        break;
      case SUM:
        add_up(s);
        break;
      case MEAN:
        mean(s);
        break;
      case ADD:
        add(s);
        break;
      case SUBSAMPLE:
        subsample(s);
        break;
      case PROJECT:
        project(s);
        break;
      case LOCATE:
        locate(s);
        break;
      case MIX:
        typed(s.weight, [&](auto* knots) { s.splines == 1 ? mix_together(s, knots) : mix_apart(s, knots); });
        break;
      case OUTPUT:
        if (me == 0) std::memcpy(logits, start(s.input), s.input.channels * sizeof(float));
        break;
    }
  }
};

struct Free {
  void operator()(float* memory) const { std::free(memory); }
};

struct Engine {
  std::vector<Step> steps;
  const char* weights;
  const float* const* matrices;
  int64_t image_size = 0, logits_size = 0;
  std::vector<std::unique_ptr<float, Free>> arenas;
  std::vector<float*> places;
  Team team;
  std::vector<std::thread> helpers;
  std::atomic<int64_t> call{0};
  std::atomic<int> busy{0};
  bool over = false;
  const float* images = nullptr;
  float* logits = nullptr;
  int64_t batch = 0;

  // One image is shared by all threads, step by step; of several, each thread takes its own.
  void work(int me) {
    if (batch == 1) {
      Worker worker{weights, matrices, places.data(), me, team.size};
      for (const Step& step : steps) {
        worker.run(step, images, logits);
        if (!everyone(step.kind)) team.wait();
      }
      return;
    }
    Worker alone{weights, matrices, places.data() + me, 0, 1};
    for (int64_t n = batch * me / team.size; n < batch * (me + 1) / team.size; n++)
      for (const Step& step : steps) alone.run(step, images + n * image_size, logits + n * logits_size);
  }

  void help(int me) {
    for (int64_t seen = 0;;) {
      if (!spin([&] { return call.load(std::memory_order_acquire) != seen; })) call.wait(seen, std::memory_order_acquire);
      seen = call.load(std::memory_order_acquire);
      if (over) return;
      work(me);
      busy.fetch_sub(1, std::memory_order_release);
    }
  }

  void run(const float* from, float* to, int64_t count) {
    images = from, logits = to, batch = count;
    busy.store(team.size - 1, std::memory_order_relaxed);
    start();
    work(0);
    while (!spin([&] { return busy.load(std::memory_order_acquire) == 0; })) std::this_thread::yield();
  }

  void start() {
    call.fetch_add(1, std::memory_order_release);
    if (!helpers.empty()) call.notify_all();
  }

  ~Engine() {
    over = true;
    start();
    for (std::thread& helper : helpers) helper.join();
  }
};

// The layout of a step as the program must have it, a line for each field: its name, where it begins, its type and size
#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)
#define FIELD(name) describe<decltype(Step{}.name)>(#name, offsetof(Step, name))
#define IMAGE(name) \
  FIELD(name.offset) + FIELD(name.channels) + FIELD(name.height) + FIELD(name.width) + FIELD(name.margin) + FIELD(name.own)

template <class T>
std::string describe(const char* name, size_t offset) {
  const char* type = std::is_floating_point_v<T> ? "f" : "i";
  return std::string(name) + " " + std::to_string(offset) + " " + type + std::to_string(sizeof(T)) + "\n";
}

std::string layout() {
  return FIELD(kind) + IMAGE(input) + IMAGE(output) + IMAGE(other) + FIELD(relu) + FIELD(kernel_h) + FIELD(kernel_w) +
         FIELD(stride) + FIELD(pad_h) + FIELD(pad_w) + FIELD(dilation) + FIELD(weight.type) + FIELD(weight.offset) +
         FIELD(weight.scale) + FIELD(sums) + FIELD(mixed) + FIELD(bias) + FIELD(basis) + FIELD(splines) + FIELD(dims) +
         FIELD(knots) + FIELD(degree) + FIELD(rows) + FIELD(length) + FIELD(matching) + FIELD(bounded) +
         FIELD(decision_knots) + FIELD(decision_degree) + FIELD(diffusion) + FIELD(slope) + "end " +
         std::to_string(sizeof(Step)) + "\nlanes " + std::to_string(LANES) + "\nkinds " + TEXT((KINDS)) + "\n";
}

}  // namespace

// What Python hands over; the same order in engine.py
struct Plan {
  const void* steps;
  int64_t count;
  const char* weights;           // at a multiple of 64
  const float* const* matrices;  // of the basis, for each degree that a step has
  int64_t arena, threads;        // floats
};

extern "C" {

const char* splinenets_layout() {
  static const std::string text = layout();
  return text.c_str();
}

// Null where there are not enough memory or threads. Weights and matrices must outlive the engine.
void* splinenets_create(const Plan* plan) try {
  std::unique_ptr<Engine> engine(new Engine);
  const Step* first = static_cast<const Step*>(plan->steps);
  engine->steps.assign(first, first + plan->count);
  engine->weights = plan->weights;
  engine->matrices = plan->matrices;
  for (const Step& step : engine->steps) {
    if (step.kind == INPUT) engine->image_size = step.output.channels * step.output.height * step.output.width;
    if (step.kind == OUTPUT) engine->logits_size = step.input.channels;
  }
  engine->team.size = int(plan->threads);
  const int64_t bytes = round_up(plan->arena * sizeof(float), 64);
  for (int t = 0; t < engine->team.size; t++) {
    engine->arenas.emplace_back(static_cast<float*>(std::aligned_alloc(64, bytes)));
    if (!engine->arenas.back()) return nullptr;
    std::memset(engine->arenas.back().get(), 0, bytes);
    engine->places.push_back(engine->arenas.back().get());
  }
  for (int t = 1; t < engine->team.size; t++) engine->helpers.emplace_back(&Engine::help, engine.get(), t);
  return engine.release();
} catch (const std::exception&) {
  return nullptr;
}

void splinenets_run(void* engine, const float* images, float* logits, int64_t batch) {
  static_cast<Engine*>(engine)->run(images, logits, batch);
}

void splinenets_destroy(void* engine) { delete static_cast<Engine*>(engine); }
}
