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

inline void activate_knots(const Worker& w, const Step& s, int64_t coordinate, float position) {
  const Basis basis = w.bases.of(s.knots, s.degree);
  const Spot spot = locate(basis, position);
  float* place = w.own(s.basis) + coordinate * LANES;
  place[0] = float(spot.span);
  for (int a = 0; a <= s.degree; a++) place[1 + a] = evaluate(basis, a, spot.t).value;
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

// The decision parameters' answer to an image, or to pieces of it.
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

// Projections of a large image: every thread takes a part of its features.
inline void project(const Worker& w, const Step& s) {
  const Share mine = w.share(s.input.units());
  const Narrow x = narrow(w, s, mine);
  w.typed(s.weight, [&](auto* theta) {
    for (int64_t r = 0; r < responses(s); r++) w.own(s.sums)[r] = respond(w, s, theta, r, mine, x);
  });
}

inline float proposal(const Step& s, float z) {
  if (s.bounded) z /= std::sqrt(1 + z * z);
  return 1 / (1 + std::exp(-float(s.slope) * z));
}

inline float around(float turns) { return turns - std::floor(turns); }

inline float direction(float x, float y) {
  return x == 0 && y == 0 ? 0 : around(std::atan2(y, x) / 6.28318530717958647692f);
}

// The way from the parent's position to the proposed one; on a closed curve the shorter way round.
inline float diffuse(const Step& s, float before, float proposed) {
  if (s.diffusion == 1) return proposed;
  if (!s.closed) return before + float(s.diffusion) * (proposed - before);
  const float nearest = proposed - std::nearbyint(proposed - before);
  return around(before + float(s.diffusion) * (nearest - before));
}

inline void find_position(const Worker& w, const Step& s) {
  w.typed(s.weight, [&](auto* theta) {
    const auto response = [&](int64_t r) {
      const float z = s.bias < 0 ? 0 : w.parameter<float>(s.bias)[r];
      return z + (s.sums >= 0 ? w.total(s.sums + r) : respond(w, s, theta, r, {0, s.input.units()}, {nullptr, 0}));
    };
    for (int64_t c = 0; c < s.output.channels; c++) {
      const float z = response(c);
      const float proposed = s.closed ? direction(z, response(s.output.channels + c)) : proposal(s, z);
      const float position = diffuse(s, s.diffusion == 1 ? 0 : inherited(w, s, c), proposed);
      w.start(s.output)[s.output.channel(c)] = position;
      activate_knots(w, s, c, position);
    }
  });
}

// Positions that are given from outside.
inline void place(const Worker& w, const Step& s) {
  for (int64_t c = 0; c < s.input.channels; c++) activate_knots(w, s, c, w.start(s.input)[s.input.channel(c)]);
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

// Filters of this sample. With one spline, knots are stored as filters are: (K, blocks, length, 16).
template <class T>
void mix_together(const Worker& w, const Step& s, const T* knots) {
  int64_t rows[MOST_ACTIVE];
  float shares[MOST_ACTIVE];
  const int64_t count = gather(w, s, 0, rows, shares), block = s.length * LANES;
  const Share mine = shared_blocks(w, s);
  for (int64_t b = mine.begin; b < mine.end; b++) {
    const T* from[MOST_ACTIVE];
    Vector part[MOST_ACTIVE];
    for (int64_t a = 0; a < count; a++) {
      from[a] = knots + (rows[a] * s.output.blocks() + b) * block;
      part[a] = broadcast(shares[a]);
      if (s.weight.scale >= 0) part[a] *= load(w.parameter<float>(s.weight.scale) + rows[a] * s.rows + b * LANES);
    }
    float* to = w.own(s.mixed) + b * block;
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
void mix_apart(const Worker& w, const Step& s, const T* knots) {
  const int64_t all = s.dims * s.knots, per_spline = s.rows / s.splines;
  const Share mine = shared_blocks(w, s);
  for (int64_t b = mine.begin; b < mine.end; b++) {
    const T* from[LANES][MOST_ACTIVE];
    float shares[LANES][MOST_ACTIVE];
    int64_t count = 0, filters = std::min<int64_t>(LANES, s.rows - b * LANES);
    for (int64_t f = 0; f < filters; f++) {
      int64_t rows[MOST_ACTIVE], filter = b * LANES + f;
      count = gather(w, s, filter / per_spline, rows, shares[f]);
      for (int64_t a = 0; a < count; a++) {
        from[f][a] = knots + (filter * all + rows[a]) * s.length;
        shares[f][a] *= w.scale(s.weight, filter * all + rows[a]);
      }
    }
    float* to = w.own(s.mixed) + b * s.length * LANES;
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

inline void mix(const Worker& w, const Step& s) {
  w.typed(s.weight, [&](auto* knots) { s.splines == 1 ? mix_together(w, s, knots) : mix_apart(w, s, knots); });
}

}  // namespace
