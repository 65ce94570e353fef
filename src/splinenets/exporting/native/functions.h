// Functions of single numbers, as many at a time as a register holds. What is not a number stays so.
#pragma once

#include "step.h"

#include <cmath>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace {

// A block of channels is as many registers as it takes: compilers keep wider vectors in memory.
constexpr int PARTS = LANES / TILE_SIDE;
typedef float Part __attribute__((vector_size(4 * TILE_SIDE), aligned(4), may_alias));
typedef uint32_t Bits __attribute__((vector_size(4 * TILE_SIDE)));
typedef int32_t Whole __attribute__((vector_size(4 * TILE_SIDE)));

inline Part load_part(const float* from) { return *reinterpret_cast<const Part*>(from); }

inline Part load_part(const uint16_t* from) {  // bf16: the upper half of a float
  typedef uint16_t Half __attribute__((vector_size(2 * TILE_SIDE)));
  Half half;
  std::memcpy(&half, from, sizeof half);
  const Bits bits = __builtin_convertvector(half, Bits) << 16;
  Part v;
  std::memcpy(&v, &bits, sizeof v);
  return v;
}

inline Part load_part(const int8_t* from) {
#if defined(__AVX512F__)  // compilers convert vectors of bytes one by one
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
#elif defined(__AVX2__)
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
#else
  typedef int8_t Byte __attribute__((vector_size(TILE_SIDE)));
  Byte bytes;
  std::memcpy(&bytes, from, sizeof bytes);
  return __builtin_convertvector(__builtin_convertvector(bytes, Whole), Part);
#endif
}

inline void store_part(float* to, Part value) { *reinterpret_cast<Part*>(to) = value; }

inline float sum(Part v) {
  float parts[TILE_SIDE];
  store_part(parts, v);
  for (int half = TILE_SIDE / 2; half; half /= 2)
    for (int i = 0; i < half; i++) parts[i] += parts[i + half];
  return parts[0];
}

inline Part minimum(Part v, float most) { return v > Part{} + most ? Part{} + most : v; }

inline Part maximum(Part v, float least) { return v < Part{} + least ? Part{} + least : v; }

inline Part relu(Part v) { return Part{} > v ? Part{} : v; }

// e^v for v between -87 and 88, and beyond that as at these ends: 2^n e^r with a whole n and |r| <= log(2) / 2
inline Part exponential(Part v) {
  v = maximum(minimum(v, 88.0f), -87.0f);
  const float shift = 12582912.0f;  // 1.5 * 2^23: what is added to it is rounded to whole numbers
  const Part shifted = v * 1.44269504f + shift, n = shifted - shift;
  const Part r = (v - n * 0.693359375f) + n * 2.12194440e-4f;
  Part p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  Bits bits;
  std::memcpy(&bits, &shifted, sizeof bits);
  bits = (bits + 127u) << 23;
  Part power;
  std::memcpy(&power, &bits, sizeof power);
  return p * power;
}

inline Part sigmoid(Part v) { return 1.0f / (1.0f + exponential(-v)); }

inline Part hyperbolic_tangent(Part v) { return 2.0f * sigmoid(2.0f * v) - 1.0f; }

// The error function to 1.5e-7, Abramowitz and Stegun 7.1.26
inline Part error_function(Part v) {
  const Part size = v < Part{} ? -v : v;
  const Part t = 1.0f / (1.0f + 0.3275911f * size);
  Part p = t * 1.061405429f - 1.453152027f;
  p = p * t + 1.421413741f;
  p = p * t - 0.284496736f;
  p = p * t + 0.254829592f;
  const Part y = 1.0f - p * t * exponential(-size * size);
  return v < Part{} ? -y : y;
}

inline Part hard_sigmoid(Part v) { return minimum(maximum(v + 3.0f, 0), 6) * (1 / 6.0f); }

inline Part gelu_tanh(Part v) {
  return 0.5f * v * (1.0f + hyperbolic_tangent(0.7978845608f * (v + 0.044715f * v * v * v)));
}

inline Part activate(Part v, const Step& s) {
  switch (s.activation) {
    case RELU:
      return relu(v);
    case RELU6:
      return minimum(relu(v), 6);
    case LEAKY_RELU:
      return v < Part{} ? v * float(s.slope) : v;
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

inline float activate(float value, const Step& s) { return s.activation == NONE ? value : activate(Part{} + value, s)[0]; }

}  // namespace
