// What the kernels and the engine of exported networks share: vectors, their transposition, and the B-spline basis.
//
// Only the compiler's own vector types are used: the same source serves AVX-512, AVX2, NEON and anything else.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

namespace {

// As many numbers as a register holds: compilers keep wider vectors in memory, and shuffle them number by number.
#if defined(__AVX512F__)
constexpr int WIDTH = 16;
#elif defined(__AVX__)
constexpr int WIDTH = 8;
#else
constexpr int WIDTH = 4;
#endif

typedef float Vector __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
typedef uint32_t Units __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));

constexpr int64_t round_up(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

inline Vector load(const float* from) { return *reinterpret_cast<const Vector*>(from); }

inline Vector load(const uint16_t* from) {  // bf16: the upper half of a float
  typedef uint16_t Half __attribute__((vector_size(2 * WIDTH)));
  Half half;
  std::memcpy(&half, from, sizeof half);
  const Units bits = __builtin_convertvector(half, Units) << 16;
  Vector v;
  std::memcpy(&v, &bits, sizeof v);
  return v;
}

inline void store(float* to, Vector value) { *reinterpret_cast<Vector*>(to) = value; }

// Transposition of WIDTH vectors

template <int STEP, size_t... J>
inline void exchange(Vector& a, Vector& b, std::index_sequence<J...>) {
#if defined(__clang__) || __GNUC__ >= 12
  const Vector low = __builtin_shufflevector(a, b, (J & STEP ? WIDTH + J - STEP : J)...);
  b = __builtin_shufflevector(a, b, (J & STEP ? WIDTH + J : J + STEP)...);
#else
  typedef int32_t Order __attribute__((vector_size(4 * WIDTH)));
  const Vector low = __builtin_shuffle(a, b, Order{int32_t(J & STEP ? WIDTH + J - STEP : J)...});
  b = __builtin_shuffle(a, b, Order{int32_t(J & STEP ? WIDTH + J : J + STEP)...});
#endif
  a = low;
}

template <int STEP>
inline void exchange_all(Vector (&rows)[WIDTH]) {
#pragma GCC unroll 16
  for (int i = 0; i < WIDTH; i++)
    if (!(i & STEP)) exchange<STEP>(rows[i], rows[i + STEP], std::make_index_sequence<WIDTH>());
  if constexpr (STEP < WIDTH / 2) exchange_all<2 * STEP>(rows);
}

// The B-spline basis, as in basis.py, whose matrix is handed in: (degree + 1, degree + 1), row p, column j: the coefficient
// of t^p in the j-th of the functions that meet in a span

struct Basis {
  int64_t knots, degree;
  const float* matrix;
};

// The span in which a position lies, and where in it. Positions outside [0, 1] count as its nearest end; one that is not a
// number lies in the first span, where all functions are not numbers either.
struct Spot {
  int span;
  float t;
};

inline Spot locate(const Basis& basis, float position) {
  const int spans = int(basis.knots - basis.degree);
  const float u = (position < 0 ? 0 : position > 1 ? 1 : position) * spans;
  const int span = u >= 1 ? (u < spans ? int(u) : spans - 1) : 0;
  return {span, u - span};
}

// The j-th function of a span and its slope, by Horner's rule
struct Height {
  float value, slope;
};

inline Height evaluate(const Basis& basis, int j, float t) {
  float value = 0, slope = 0;
  for (int q = int(basis.degree); q >= 0; q--) {
    slope = slope * t + value;
    value = value * t + basis.matrix[q * (basis.degree + 1) + j];
  }
  return {value < 0 ? 0 : value, slope};
}

}  // namespace
