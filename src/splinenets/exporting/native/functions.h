// Functions of single numbers, as many at a time as a register holds. What is not a number stays so.
#pragma once

#include "step.h"

#include <cmath>

#if defined(__AVX__)
#include <immintrin.h>
#endif

namespace {

// A block of channels is as many registers as it takes.
constexpr int PARTS = LANES / WIDTH;
typedef int32_t Whole __attribute__((vector_size(4 * WIDTH)));

inline Vector load(const int8_t* from) {
#if defined(__AVX512F__)  // compilers convert vectors of bytes one by one
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
#elif defined(__AVX2__)
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
#else
  typedef int8_t Byte __attribute__((vector_size(WIDTH)));
  Byte bytes;
  std::memcpy(&bytes, from, sizeof bytes);
  return __builtin_convertvector(__builtin_convertvector(bytes, Whole), Vector);
#endif
}

inline float sum(Vector v) {
  float parts[WIDTH];
  store(parts, v);
  for (int half = WIDTH / 2; half; half /= 2)
    for (int i = 0; i < half; i++) parts[i] += parts[i + half];
  return parts[0];
}

inline Vector square_root(Vector v) {
#if defined(__AVX512F__)  // compilers take roots one by one, because of what C does with negative numbers
  return _mm512_sqrt_ps(v);
#elif defined(__AVX__)
  return _mm256_sqrt_ps(v);
#else
  for (int i = 0; i < WIDTH; i++) v[i] = std::sqrt(v[i]);
  return v;
#endif
}

inline Vector minimum(Vector v, float most) { return v > Vector{} + most ? Vector{} + most : v; }

inline Vector maximum(Vector v, float least) { return v < Vector{} + least ? Vector{} + least : v; }

inline Vector relu(Vector v) { return Vector{} > v ? Vector{} : v; }

// e^v for v between -87 and 88, and beyond that as at these ends: 2^n e^r with a whole n and |r| <= log(2) / 2
inline Vector exponential(Vector v) {
  v = maximum(minimum(v, 88.0f), -87.0f);
  const float shift = 12582912.0f;  // 1.5 * 2^23: what is added to it is rounded to whole numbers
  const Vector shifted = v * 1.44269504f + shift, n = shifted - shift;
  const Vector r = (v - n * 0.693359375f) + n * 2.12194440e-4f;
  Vector p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  Units bits;
  std::memcpy(&bits, &shifted, sizeof bits);
  bits = (bits + 127u) << 23;
  Vector power;
  std::memcpy(&power, &bits, sizeof power);
  return p * power;
}

inline Vector sigmoid(Vector v) { return 1.0f / (1.0f + exponential(-v)); }

inline Vector hyperbolic_tangent(Vector v) { return 2.0f * sigmoid(2.0f * v) - 1.0f; }

// The error function to 1.5e-7, Abramowitz and Stegun 7.1.26
inline Vector error_function(Vector v) {
  const Vector size = v < Vector{} ? -v : v;
  const Vector t = 1.0f / (1.0f + 0.3275911f * size);
  Vector p = t * 1.061405429f - 1.453152027f;
  p = p * t + 1.421413741f;
  p = p * t - 0.284496736f;
  p = p * t + 0.254829592f;
  const Vector y = 1.0f - p * t * exponential(-size * size);
  return v < Vector{} ? -y : y;
}

inline Vector hard_sigmoid(Vector v) { return minimum(maximum(v + 3.0f, 0), 6) * (1 / 6.0f); }

inline Vector gelu_tanh(Vector v) {
  return 0.5f * v * (1.0f + hyperbolic_tangent(0.7978845608f * (v + 0.044715f * v * v * v)));
}

inline Vector activate(Vector v, const Step& s) {
  switch (s.activation) {
    case RELU:
      return relu(v);
    case RELU6:
      return minimum(relu(v), 6);
    case LEAKY_RELU:
      return v < Vector{} ? v * float(s.slope) : v;
    case SIGMOID:
      return sigmoid(v);
    case SILU:
      return v * sigmoid(v);
    case HARD_SIGMOID:
      return hard_sigmoid(v);
    case HARD_SWISH:
      return v * hard_sigmoid(v);
    case GELU:
      return 0.5f * v * (1.0f + error_function(v * 0.70710678f));
    case GELU_TANH:
      return gelu_tanh(v);
    case TANH:
      return hyperbolic_tangent(v);
    default:
      return v;
  }
}

inline float activate(float value, const Step& s) { return s.activation == NONE ? value : activate(Vector{} + value, s)[0]; }

}  // namespace
