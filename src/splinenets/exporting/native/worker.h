// One thread of the engine, and the memory it works in.
#pragma once

#include "functions.h"

#include <array>

namespace {

// The matrices of the B-spline basis, as in basis.py: whole numbers until the last division.
class Bases {
 public:
  Bases() {
    for (int degree = 0; degree <= MOST_DEGREE; degree++) fill(degree);
  }

  Basis of(int64_t knots, int64_t degree) const { return {knots, degree, matrices[degree].data()}; }

 private:
  std::array<std::array<float, (MOST_DEGREE + 1) * (MOST_DEGREE + 1)>, MOST_DEGREE + 1> matrices;

  static int64_t choose(int64_t n, int64_t k) {
    int64_t ways = 1;
    for (int64_t i = 0; i < k; i++) ways = ways * (n - i) / (i + 1);
    return ways;
  }

  static int64_t power(int64_t base, int64_t exponent) { return exponent ? base * power(base, exponent - 1) : 1; }

  void fill(int d) {
    double factorial = 1;
    for (int i = 2; i <= d; i++) factorial *= i;
    for (int j = 0; j <= d; j++)
      for (int p = 0; p <= d; p++) {
        int64_t sum = 0;
        for (int i = 0; i <= d - j; i++) sum += (i % 2 ? -1 : 1) * choose(d + 1, i) * choose(d, p) * power(d - j - i, d - p);
        matrices[d][p * (d + 1) + j] = float(double(sum) / factorial);
      }
  }
};

// What a file brings.
struct Content {
  const Step* steps;
  int64_t count;
  const char* parameters;
  int64_t bytes;  // of parameters
  int64_t arena;  // floats that one image needs
  const struct Told* told;
  int64_t told_count;
};

// One number that a network is told.
struct Told {
  char name[48];
  double low, high;

  float position(float value) const { return (value - float(low)) / (float(high) - float(low)); }

  bool allows(float value) const {  // what is not a number may be anywhere, and spoils its own image alone
    return !(value < float(std::min(low, high)) || value > float(std::max(low, high)));
  }
};

// What goes in and out for one image.
struct Sample {
  const float *image, *told;
  float* outputs;
};

struct Worker {
  const Content& content;
  const Bases& bases;
  float* const* arenas;  // one for each thread; what all share lies in the first
  int me, size;

  Share share(int64_t count) const { return {count * me / size, count * (me + 1) / size}; }

  float* own(int64_t offset) const { return arenas[me] + offset; }

  float* start(const Image& x) const { return arenas[x.own ? me : 0] + x.start(); }

  // A row of an image: `unit` counts rows of all its blocks.
  float* row(const Image& x, int64_t unit) const {
    return start(x) + unit / x.height * x.block() + unit % x.height * x.row();
  }

  // Sums of channels, where somebody asks for them: they begin at 0, and get one complete row of an image after the other.
  void begin_sums(const Step& s, const Image& x) const {
    if (s.sums >= 0) std::memset(own(s.sums), 0, x.blocks() * LANES * sizeof(float));
  }

  void add_row(const Step& s, const Image& x, int64_t unit) const {
    if (s.sums < 0) return;
    const float* from = row(x, unit);
    float* to = own(s.sums) + unit / x.height * LANES;
    Vector even[PARTS] = {}, odd[PARTS] = {};  // one addition need not wait for the one before
    int64_t i = 0;
    for (; i + 2 <= x.width; i += 2, from += 2 * LANES)
#pragma GCC unroll 4
      for (int p = 0; p < PARTS; p++) even[p] += load(from + p * WIDTH), odd[p] += load(from + LANES + p * WIDTH);
    for (int p = 0; p < PARTS; p++, to += WIDTH)
      store(to, load(to) + even[p] + (i < x.width ? odd[p] + load(from + p * WIDTH) : odd[p]));
  }

  // What all threads have added up together.
  float total(int64_t offset) const {
    float sum = 0;
    for (int t = 0; t < size; t++) sum += arenas[t][offset];
    return sum;
  }

  Vector totals(int64_t offset) const {
    Vector sums{};
    for (int t = 0; t < size; t++) sums += load(arenas[t] + offset);
    return sums;
  }

  template <class T>
  const T* parameter(int64_t offset) const {
    return reinterpret_cast<const T*>(content.parameters + offset);
  }

  // f(pointer to the first stored number) for the type that the matrix has
  template <class F>
  void typed(const Matrix& matrix, F f) const {
    if (matrix.type == FLOAT32)
      f(parameter<float>(matrix.offset));
    else if (matrix.type == BFLOAT16)
      f(parameter<uint16_t>(matrix.offset));
    else
      f(parameter<int8_t>(matrix.offset));
  }

  float scale(const Matrix& matrix, int64_t row) const {
    return matrix.scale < 0 ? 1.0f : parameter<float>(matrix.scale)[row];
  }
};

}  // namespace
