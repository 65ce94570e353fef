// Dot products of an image and stored rows: several rows at a time, so that the image is read once.
#pragma once

#include "worker.h"

namespace {

constexpr int TOGETHER = 3;  // rows: as many as a quadratic spline touches

// Pieces of an image: all of a vector, or rows. Rows of parameters have their numbers in the same order, without margins.
template <int R, class T>
void multiply_pieces(const Worker& w, const Image& x, Share pieces, const T* const* rows, float* answers) {
  constexpr int AHEAD = R == 1 ? 4 : R <= 3 ? 2 : 1;
  Vector sums[R][AHEAD][PARTS] = {};
  const int64_t length = x.width * LANES;
  for (int64_t piece = pieces.begin; piece < pieces.end; piece++) {
    const float* from = w.row(x, piece);
    const T* at[R];
    for (int r = 0; r < R; r++) at[r] = rows[r] + piece * length;
    int64_t j = 0;
    for (; j + AHEAD * LANES <= length; j += AHEAD * LANES)
#pragma GCC unroll 4
      for (int i = 0; i < AHEAD; i++)
#pragma GCC unroll 4
        for (int p = 0; p < PARTS; p++) {
          const int64_t place = j + i * LANES + p * WIDTH;
          const Vector value = load(from + place);
#pragma GCC unroll 4
          for (int r = 0; r < R; r++) sums[r][i][p] += load(at[r] + place) * value;
        }
    for (; j < length; j += LANES)
      for (int p = 0; p < PARTS; p++) {
        const int64_t place = j + p * WIDTH;
        for (int r = 0; r < R; r++) sums[r][0][p] += load(at[r] + place) * load(from + place);
      }
  }
  for (int r = 0; r < R; r++) {
    Vector all{};
    for (int i = 0; i < AHEAD; i++)
      for (int p = 0; p < PARTS; p++) all += sums[r][i][p];
    answers[r] = sum(all);
  }
}

// Features as whole numbers of 16 bits, and what one of them is worth.
struct Narrow {
  const int16_t* values;
  float unit;  // 0: they could not be had
};

#if defined(__AVX512BW__)
constexpr int STEP_BYTES = 32;  // whole numbers in a step
typedef __m512i Wide;
inline Wide no_sums() { return _mm512_setzero_si512(); }
inline Wide multiply_add(Wide sums, const int8_t* row, const int16_t* x) {
  const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row));
  const Wide products = _mm512_cvtepi8_epi16(bytes), values = _mm512_loadu_si512(x);
#if defined(__AVX512VNNI__)
  return _mm512_dpwssd_epi32(sums, products, values);
#else
  return _mm512_add_epi32(sums, _mm512_madd_epi16(products, values));
#endif
}
constexpr bool WHOLE = true;  // whole numbers multiply faster

inline double sum_of(Wide v) {
  int32_t parts[sizeof(Wide) / 4];
  std::memcpy(parts, &v, sizeof v);
  double all = 0;
  for (int32_t part : parts) all += part;
  return all;
}

constexpr int64_t NEXT = 2048;  // bytes from those that are multiplied to those that should be on their way from memory

// A lane grows by 2 * 127 * 32767 in a step, so it is emptied after 128 of them.
template <int R>
void multiply_whole(const int16_t* x, int64_t begin, int64_t end, const int8_t* const* rows, float* answers) {
  double all[R] = {};
  for (int64_t start = begin; start < end; start += 128 * STEP_BYTES) {
    const int64_t stop = std::min(end, start + 128 * STEP_BYTES);
    Wide sums[R];
    for (int r = 0; r < R; r++) sums[r] = no_sums();
    for (int64_t j = start; j < stop; j += STEP_BYTES)
#pragma GCC unroll 3
      for (int r = 0; r < R; r++) {
        __builtin_prefetch(rows[r] + j + NEXT, 0, 2);
        sums[r] = multiply_add(sums[r], rows[r] + j, x + (j - begin));
      }
    for (int r = 0; r < R; r++) all[r] += sum_of(sums[r]);
  }
  for (int r = 0; r < R; r++) answers[r] = float(all[r]);
}
#else
constexpr int STEP_BYTES = 16;
constexpr bool WHOLE = false;

template <int R>
void multiply_whole(const int16_t*, int64_t, int64_t, const int8_t* const*, float*) {}
#endif

// Pieces of an image as whole numbers. Where something is not finite, they stay floats: the answer is not finite either.
inline Narrow narrow(const Worker& w, const Step& s, Share pieces) {
  const int64_t length = s.input.width * LANES;
  if (!WHOLE || s.narrow < 0 || s.weight.type != INT8 || length % STEP_BYTES) return {nullptr, 0};
  Vector most{};
  for (int64_t piece = pieces.begin; piece < pieces.end; piece++)
    for (int64_t j = 0; j < length; j += WIDTH) {
      const Vector v = load(w.row(s.input, piece) + j), size = v < Vector{} ? -v : v;
      most = (size > most) | (size != size) ? size : most;
    }
  float parts[WIDTH], largest = 1e-30f;
  store(parts, most);
  for (float part : parts) largest = part > largest || part != part ? part : largest;
  if (!(largest < 1e30f)) return {nullptr, 0};
  int16_t* to = reinterpret_cast<int16_t*>(w.own(s.narrow));
  const float scale = 32767 / largest;
  for (int64_t piece = pieces.begin; piece < pieces.end; piece++)
    for (int64_t j = 0; j < length; j++, to++) {
      const float value = w.row(s.input, piece)[j] * scale;
      *to = int16_t(value < 0 ? value - 0.5f : value + 0.5f);
    }
  return {reinterpret_cast<const int16_t*>(w.own(s.narrow)), largest / 32767};
}

template <int R, class T>
void multiply_rows(const Worker& w, const Step& s, Share pieces, const Narrow& x, const T* const* rows, float* answers) {
  if constexpr (std::is_same_v<T, int8_t>)
    if (x.unit > 0) {
      const int64_t length = s.input.width * LANES;
      multiply_whole<R>(x.values, pieces.begin * length, pieces.end * length, rows, answers);
      for (int r = 0; r < R; r++) answers[r] *= x.unit;
      return;
    }
  multiply_pieces<R>(w, s.input, pieces, rows, answers);
}

// An image without margins is one long vector.
inline Image flat(const Image& x) {
  if (x.margin) return x;
  return {x.offset, LANES, 1, x.units() * x.width, 0, x.own};
}

}  // namespace
