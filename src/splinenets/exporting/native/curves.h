// Splines: where an image stands on them, and the filters of that place.
#pragma once

#include "convolution.h"
#include "dots.h"

namespace {

// Active knots of a coordinate: 16 floats, the number of the first, and the weight of each.
struct Active {
  int64_t first;
  const float* weights;
};

// Memory may have been written by any step: a number that is no knot counts as the first.
inline Active active(const Worker& w, const Step& s, int64_t coordinate) {
  const float* place = w.own(s.basis) + coordinate * LANES;
  const float first = place[0];
  return {first >= 0 && first <= float(s.knots - s.degree - 1) ? int64_t(first) : 0, place + 1};
}

// Some coordinates from `first` on, at most as many as a block has; all 16 positions are numbers that may be read.
inline void activate_knots(const Worker& w, const Step& s, int64_t first, int64_t count, const float* positions) {
  const Basis basis = w.bases.of(s.knots, s.degree);
  const float spans = float(s.knots - s.degree);
  float found[MOST_DEGREE + 2][LANES];
  for (int p = 0; p < LANES; p += WIDTH) {
    const Vector u = minimum(maximum(load(positions + p), 0), 1) * spans;
    const Vector inside = (u >= 1) & (u < spans) ? u : Vector{};
    const Vector whole = __builtin_convertvector(__builtin_convertvector(inside, Whole), Vector);
    const Vector span = u >= spans ? Vector{} + (spans - 1) : whole, t = u - span;
    store(found[0] + p, span);
    for (int64_t a = 0; a <= s.degree; a++) {
      Vector value{};
      for (int64_t q = s.degree; q >= 0; q--) value = value * t + basis.matrix[q * (s.degree + 1) + a];
      store(found[1 + a] + p, maximum(value, 0));
    }
  }
  float* place = w.own(s.basis) + first * LANES;
  for (int64_t i = 0; i < count; i++, place += LANES)
    for (int64_t a = 0; a <= s.degree + 1; a++) place[a] = found[a][i];
}

inline float inherited(const Worker& w, const Step& s, int64_t coordinate) {
  if (!s.other.exists()) return 0.5f;
  const float* parent = w.start(s.other);
  if (s.matching < 0) return parent[s.other.channel(coordinate)];
  const float* match = w.parameter<float>(s.matching) + coordinate * s.other.channels;
  float position = 0;
  for (int64_t p = 0; p < s.other.channels; p++) position += match[p] * parent[s.other.channel(p)];
  return position;
}

// On closed curves a position has two responses, a point in the plane.
inline int64_t responses(const Step& s) { return s.output.channels * (s.closed ? 2 : 1); }

// Rows of decision parameters that matter, and how much of each.
struct Decision {
  int64_t count, rows[MOST_DEGREE + 1];
  float shares[MOST_DEGREE + 1];
};

inline Decision decide(const Worker& w, const Step& s, int64_t response) {
  if (!s.decision_knots) return {1, {response}, {w.scale(s.weight, response)}};
  const Basis basis = w.bases.of(s.decision_knots, s.decision_degree);
  const Spot spot = locate(basis, inherited(w, s, response % s.output.channels));
  Decision found{basis.degree + 1, {}, {}};
  for (int a = 0; a <= basis.degree; a++) {
    found.rows[a] = (spot.span + a) * responses(s) + response;
    found.shares[a] = evaluate(basis, a, spot.t).value * w.scale(s.weight, found.rows[a]);
  }
  return found;
}

// The answer of decision parameters on a spline to an image, or to pieces of it.
template <class T>
float respond(const Worker& w, const Step& s, const T* theta, int64_t response, Share pieces, const Narrow& x) {
  const Decision found = decide(w, s, response);
  const T* rows[MOST_DEGREE + 1];
  float answers[MOST_DEGREE + 1], z = 0;
  for (int64_t a = 0; a < found.count; a++) rows[a] = theta + found.rows[a] * s.length;
  int64_t a = 0;
  for (; a + TOGETHER <= found.count; a += TOGETHER) multiply_rows<TOGETHER>(w, s, pieces, x, rows + a, answers + a);
  for (; a < found.count; a++) multiply_rows<1>(w, s, pieces, x, rows + a, answers + a);
  for (a = 0; a < found.count; a++) z += found.shares[a] * answers[a];
  return z;
}

// The same for some responses; where decision parameters are not on a spline, they are rows side by side.
template <class T>
void respond(const Worker& w, const Step& s, const T* theta, Share of, Share pieces, const Narrow& x, float* z) {
  constexpr int MANY = 4;
  int64_t r = of.begin;
  for (; !s.decision_knots && r + MANY <= of.end; r += MANY, z += MANY) {
    const T* rows[MANY];
    for (int i = 0; i < MANY; i++) rows[i] = theta + (r + i) * s.length;
    multiply_rows<MANY>(w, s, pieces, x, rows, z);
    for (int i = 0; i < MANY; i++) z[i] *= w.scale(s.weight, r + i);
  }
  for (; r < of.end; r++, z++) *z = respond(w, s, theta, r, pieces, x);
}

// Projections of a large image: every thread takes a part of its features.
inline void project(const Worker& w, const Step& s) {
  const Share mine = w.share(s.input.units());
  const Narrow x = narrow(w, s, mine);
  w.typed(s.weight, [&](auto* theta) { respond(w, s, theta, {0, responses(s)}, mine, x, w.own(s.sums)); });
}

inline Vector proposal(const Step& s, Vector z) {
  if (s.bounded) z /= square_root(1 + z * z);
  return sigmoid(z * float(s.slope));
}

inline float around(float turns) { return turns - std::floor(turns); }

inline float direction(float x, float y) {
  return x == 0 && y == 0 ? 0 : around(std::atan2(y, x) / 6.28318530717958647692f);
}

// The way from the parent's position to the proposed one; on a closed curve the shorter way round.
inline float diffuse(const Step& s, float before, float proposed) {
  if (!s.closed) return before + float(s.diffusion) * (proposed - before);
  const float nearest = proposed - std::nearbyint(proposed - before);
  return around(before + float(s.diffusion) * (nearest - before));
}

// f(the first coordinate, how many) for all of them, a block at a time
template <class F>
void visit_coordinates(int64_t count, F f) {
  for (int64_t first = 0; first < count; first += LANES) f(first, std::min<int64_t>(LANES, count - first));
}

// A block of responses at once: their decision parameters lie beside each other, (blocks, length, 16).
template <class T>
void respond_block(const Worker& w, const Step& s, const T* theta, int64_t first, float* z) {
  Vector even[PARTS] = {}, odd[PARTS] = {};  // one addition need not wait for the one before
  theta += first * s.length;
  for (int64_t b = 0; b < s.input.blocks(); b++) {
    const float* x = w.start(s.input) + b * s.input.block();
    for (int c = 0; c < LANES; c += 2, theta += 2 * LANES)
#pragma GCC unroll 4
      for (int p = 0; p < PARTS; p++) {
        even[p] += x[c] * load(theta + p * WIDTH);
        odd[p] += x[c + 1] * load(theta + LANES + p * WIDTH);
      }
  }
  for (int p = 0; p < PARTS; p++) {
    Vector all = even[p] + odd[p];
    if (s.weight.scale >= 0) all *= load(w.parameter<float>(s.weight.scale) + first + p * WIDTH);
    store(z + p * WIDTH, all);
  }
}

// The responses of some coordinates, with their bias
inline void find_responses(const Worker& w, const Step& s, int64_t first, int64_t count, float* z) {
  if (s.sums >= 0)
    for (int64_t i = 0; i < count; i++) z[i] = w.total(s.sums + first + i);
  else if (s.blocked)
    w.typed(s.weight, [&](auto* theta) { respond_block(w, s, theta, first, z); });
  else
    w.typed(s.weight, [&](auto* theta) {
      respond(w, s, theta, {first, first + count}, {0, s.input.units()}, {nullptr, 0}, z);
    });
  for (int64_t i = 0; s.bias >= 0 && i < count; i++) z[i] += w.parameter<float>(s.bias)[first + i];
}

inline void find_position(const Worker& w, const Step& s) {
  visit_coordinates(s.output.channels, [&](int64_t first, int64_t count) {
    float z[LANES] = {}, across[LANES] = {}, positions[LANES] = {};
    find_responses(w, s, first, count, z);
    if (s.closed) {
      find_responses(w, s, s.output.channels + first, count, across);
      for (int64_t i = 0; i < count; i++) positions[i] = direction(z[i], across[i]);
    } else {
      for (int p = 0; p < LANES; p += WIDTH) store(positions + p, proposal(s, load(z + p)));
    }
    for (int64_t i = 0; s.diffusion != 1 && i < count; i++)
      positions[i] = diffuse(s, inherited(w, s, first + i), positions[i]);
    std::copy(positions, positions + count, w.start(s.output) + s.output.channel(first));
    activate_knots(w, s, first, count, positions);
  });
}

// Positions that are given from outside.
inline void place(const Worker& w, const Step& s) {
  visit_coordinates(s.input.channels, [&](int64_t first, int64_t count) {
    float positions[LANES] = {};
    for (int64_t i = 0; i < count; i++) positions[i] = w.start(s.input)[s.input.channel(first + i)];
    activate_knots(w, s, first, count, positions);
  });
}

// The rows of `weight` that a spline touches, and how much of each: (d + 1) for each of its dims.
inline int64_t gather(const Worker& w, const Step& s, int64_t spline, int64_t* rows, float* shares) {
  int64_t count = 0;
  for (int64_t dim = 0; dim < s.dims; dim++) {
    const Active found = active(w, s, spline * s.dims + dim);
    for (int64_t a = 0; a <= s.degree; a++, count++) {
      rows[count] = dim * s.knots + found.first + a;
      shares[count] = found.weights[a] / float(s.dims);
    }
  }
  return count;
}

// A sum of so many rows, in each of which every lane has a factor of its own.
template <int COUNT, class T>
void sum_rows(const T* const* from, const float (*shares)[LANES], int64_t length, float* to) {
  Vector part[COUNT][PARTS];
#pragma GCC unroll 8
  for (int a = 0; a < COUNT; a++)
#pragma GCC unroll 4
    for (int p = 0; p < PARTS; p++) part[a][p] = load(shares[a] + p * WIDTH);
  for (int64_t j = 0; j < length; j += LANES)
#pragma GCC unroll 4
    for (int p = 0; p < PARTS; p++) {
      Vector v = part[0][p] * load(from[0] + j + p * WIDTH);
#pragma GCC unroll 8
      for (int a = 1; a < COUNT; a++) v += part[a][p] * load(from[a] + j + p * WIDTH);
      store(to + j + p * WIDTH, v);
    }
}

template <class T>
using SumRows = void (*)(const T* const*, const float (*)[LANES], int64_t, float*);

template <class T, int... COUNT>
SumRows<T> row_sum(int64_t count, std::integer_sequence<int, COUNT...>) {
  static constexpr SumRows<T> sums[] = {sum_rows<COUNT + 1, T>...};
  return sums[count - 1];
}

// Filters of this sample, block by block, of knots that are stored as filters are: (K, blocks, length, 16). One spline
// reads the rows that it touches; of several, each touches all.
template <class T>
class Together {
 public:
  Together(const Worker& w, const Step& s, const T* knots) : w(w), s(s), knots(knots) {
    if (s.splines == 1)
      count = gather(w, s, 0, rows, shares);
    else
      for (count = 0; count < knot_rows(s); count++) rows[count] = count;
  }

  void mix(int64_t b, float* to) const {
    constexpr int MANY = 8;
    const T* from[MOST_ACTIVE];
    float parts[MOST_ACTIVE][LANES];
    find_shares(b, parts);
    for (int64_t a = 0; a < count; a++) {
      from[a] = knots + (rows[a] * s.output.blocks() + b) * s.length * LANES;
      for (int i = 0; s.weight.scale >= 0 && i < LANES; i++)
        parts[a][i] *= w.scale(s.weight, rows[a] * s.rows + b * LANES + i);
    }
    const int64_t length = s.length * LANES;
    if (count <= MANY) return row_sum<T>(count, std::make_integer_sequence<int, MANY>())(from, parts, length, to);
    for (int64_t j = 0; j < length; j += WIDTH) {
      Vector v{};
      for (int64_t a = 0; a < count; a++) v += load(parts[a] + j % LANES) * load(from[a] + j);
      store(to + j, v);
    }
  }

 private:
  const Worker& w;
  const Step& s;
  const T* knots;
  int64_t count, rows[MOST_ACTIVE];
  float shares[MOST_ACTIVE];  // of one spline

  // How much of each row goes into each filter of a block
  void find_shares(int64_t b, float (*parts)[LANES]) const {
    for (int64_t a = 0; a < count; a++) std::fill(parts[a], parts[a] + LANES, s.splines == 1 ? shares[a] : 0.0f);
    const int64_t filters = std::min<int64_t>(LANES, s.output.channels - b * LANES);
    const int64_t per_spline = s.output.channels / s.splines;
    for (int64_t f = 0; s.splines > 1 && f < filters; f++) {
      int64_t touched[MOST_ACTIVE];
      float found[MOST_ACTIVE];
      const int64_t some = gather(w, s, (b * LANES + f) / per_spline, touched, found);
      if (!s.based) {
        for (int64_t a = 0; a < some; a++) parts[a][f] = found[a];
        continue;
      }
      parts[0][f] = 1;
      for (int64_t a = 0; a < some; a++)
        if (a % s.knots) parts[a - a / s.knots][f] = found[a];
    }
  }
};

// Some filters, as many as a register holds, each with the rows that its own spline touches.
template <class T>
struct Touched {
  int64_t filters = 0, count = 0;
  const T* from[WIDTH][MOST_ACTIVE];
  float shares[WIDTH][MOST_ACTIVE];

  void find(const Worker& w, const Step& s, const T* knots, int64_t first) {
    const int64_t all = s.dims * s.knots, per_spline = s.rows / s.splines;
    filters = std::max<int64_t>(0, std::min<int64_t>(WIDTH, s.rows - first));
    for (int64_t f = 0; f < filters; f++) {
      int64_t rows[MOST_ACTIVE];
      count = gather(w, s, (first + f) / per_spline, rows, shares[f]);
      for (int64_t a = 0; a < count; a++) {
        const int64_t row = (first + f) * all + rows[a];
        from[f][a] = knots + row * s.length;
        shares[f][a] *= w.scale(s.weight, row);
      }
    }
  }

  // So many numbers of each, from j on
  void mix(int64_t j, Vector (&r)[WIDTH]) const {
    if (filters == WIDTH && count == 3) {
#pragma GCC unroll 16
      for (int f = 0; f < WIDTH; f++)
        r[f] =
            shares[f][0] * load(from[f][0] + j) + shares[f][1] * load(from[f][1] + j) + shares[f][2] * load(from[f][2] + j);
      return;
    }
    for (Vector& row : r) row = Vector{};
    for (int64_t f = 0; f < filters; f++)
      for (int64_t a = 0; a < count; a++) r[f] += shares[f][a] * load(from[f][a] + j);
  }
};

// Where knots of several splines are stored filter by filter, (filters, K, length), filters meet in blocks afterwards.
template <class T>
class Apart {
 public:
  Apart(const Worker& w, const Step& s, const T* knots) : w(w), s(s), knots(knots) {}

  void mix(int64_t b, float* to) const {
    Touched<T> now;
    for (int p = 0; p < PARTS; p++) {
      now.find(w, s, knots, b * LANES + p * WIDTH);
      float* y = to + p * WIDTH;
      for (int64_t j = 0; j < s.length; j += WIDTH) {
        alignas(4 * WIDTH) Vector r[WIDTH];
        now.mix(j, r);
        exchange_all<1>(r);
#pragma GCC unroll 16
        for (int i = 0; i < WIDTH; i++, y += LANES) store(y, r[i]);
      }
    }
  }

 private:
  const Worker& w;
  const Step& s;
  const T* knots;
};

// f(what mixes the filters of a step)
template <class F>
void with_mixer(const Worker& w, const Step& s, F f) {
  w.typed(s.weight, [&](auto* knots) {
    typedef std::remove_cv_t<std::remove_pointer_t<decltype(knots)>> T;
    if (s.splines == 1 || s.blocked)
      f(Together<T>(w, s, knots));
    else
      f(Apart<T>(w, s, knots));
  });
}

inline void mix(const Worker& w, const Step& s) {
  const Share mine = shared_blocks(w, s);
  with_mixer(w, s, [&](auto mixer) {
    for (int64_t b = mine.begin; b < mine.end; b++) mixer.mix(b, w.own(s.mixed) + b * s.length * LANES);
  });
}

// Whether the next step is the convolution that a step mixes filters for.
inline bool mixes_for(const Step& s, const Step& next) {
  return s.kind == MIX && (next.kind == CONV || next.kind == DEPTHWISE) && s.mixed == next.mixed &&
         s.length == next.length && s.output.blocks() == next.output.blocks();
}

// Both at once: a block of filters is mixed right before it is used. Filters that are not kept take one another's place, so
// that they never leave the cache.
inline void convolve_mixed(const Worker& w, const Step& s, const Step& next) {
  with_mixer(w, s, [&](auto mixer) {
    convolve(w, next, [&](Share blocks) {
      float* first = w.own(s.mixed) + (s.kept ? blocks.begin * s.length * LANES : 0);
      for (int64_t b = blocks.begin; b < blocks.end; b++) mixer.mix(b, first + (b - blocks.begin) * s.length * LANES);
      return static_cast<const float*>(first);
    });
  });
}

}  // namespace
