// Convolutions: dense, in groups, and of every channel by itself.
#pragma once

#include "worker.h"

namespace {

// How many vectors of sums fit into the registers beside filters and pixels.
#if defined(__AVX512F__)
constexpr int SUMS = 16;
#else
constexpr int SUMS = 4;
#endif

// A thread has some rows of one block of filters after the other; it mixes the filters of these blocks alone, for itself.
inline bool pairs(const Worker& w, const Step& s) {
  return SUMS >= 16 && s.groups == 1 && s.output.blocks() % (2 * w.size) == 0;
}

inline Share shared_rows(const Worker& w, const Step& s) { return w.share(s.output.units() / (pairs(w, s) ? 2 : 1)); }

inline Share shared_blocks(const Worker& w, const Step& s) {
  const Share mine = shared_rows(w, s);
  const int64_t many = pairs(w, s) ? 2 : 1;
  if (mine.begin == mine.end) return {0, 0};
  return {mine.begin / s.output.height * many, (mine.end - 1) / s.output.height * many + many};
}

// Some pixels of one row, and blocks of filters: where they read and write. What there is not is nullptr.
struct Strip {
  const float *x, *w, *bias, *more;
  float *y, *channel_sums;
  Share channels;
};

// What becomes of the sums of T pixels: more is added, they are activated, stored and added up.
template <int T>
inline void finish(const Step& s, const Strip& at, const Vector (&sums)[T], int64_t b) {
  Vector all{};
#pragma GCC unroll 16
  for (int t = 0; t < T; t++) {
    Vector v = sums[t];
    if (at.more) v += load(at.more + b * s.other.block() + t * LANES);
    if (s.activation == RELU) v = relu(v);
    store(at.y + b * s.output.block() + t * LANES, v);
    all += v;
  }
  if (at.channel_sums) store(at.channel_sums + b * LANES, load(at.channel_sums + b * LANES) + all);
}

// A tile of T pixels of one row and OB blocks of filters; a stride of 0 is any.
template <int OB, int T, int STRIDE>
void dense_tile(const Step& s, const Strip& at) {
  const int64_t filters = s.length * LANES;  // of one block
  const int64_t stride = (STRIDE ? STRIDE : s.stride_w) * LANES;
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
      const float* tap = at.x + kh * s.dilation_h * s.input.row() + kw * s.dilation_w * LANES;
      for (int64_t first = at.channels.begin; first < at.channels.end;) {
        const float* pixel = tap + s.input.channel(first);
        const int64_t count = std::min(LANES - first % LANES, at.channels.end - first);
        first += count;
        for (int64_t c = 0; c < count; c++, w += LANES) {
          Vector filter[OB];
#pragma GCC unroll 2
          for (int b = 0; b < OB; b++) filter[b] = load(w + b * filters);
#pragma GCC unroll 16
          for (int t = 0; t < T; t++) {
            Vector value = broadcast(pixel[t * stride + c]);
#pragma GCC unroll 2
            for (int b = 0; b < OB; b++) sums[b][t] += filter[b] * value;
          }
        }
      }
    }
#pragma GCC unroll 2
  for (int b = 0; b < OB; b++) finish<T>(s, at, sums[b], b);
}

// The same where every filter looks at the channel of its own number.
template <int T, int STRIDE>
void depthwise_tile(const Step& s, const Strip& at) {
  const int64_t stride = (STRIDE ? STRIDE : s.stride_w) * LANES;
  const float* w = at.w;
  Vector sums[T];
#pragma GCC unroll 16
  for (int t = 0; t < T; t++) sums[t] = at.bias ? load(at.bias) : Vector{};
  for (int64_t kh = 0; kh < s.kernel_h; kh++)
    for (int64_t kw = 0; kw < s.kernel_w; kw++, w += LANES) {
      const float* pixel = at.x + kh * s.dilation_h * s.input.row() + kw * s.dilation_w * LANES;
      const Vector filter = load(w);
#pragma GCC unroll 16
      for (int t = 0; t < T; t++) sums[t] += filter * load(pixel + t * stride);
    }
  finish<T>(s, at, sums, 0);
}

template <bool DEPTHWISE_ROW, int OB, int T, int STRIDE>
void strip(const Step& s, Strip at, int64_t left) {
  const int64_t stride = STRIDE ? STRIDE : s.stride_w;
  for (; left >= T; left -= T, at.x += T * stride * LANES, at.y += T * LANES) {
    if constexpr (DEPTHWISE_ROW)
      depthwise_tile<T, STRIDE>(s, at);
    else
      dense_tile<OB, T, STRIDE>(s, at);
    if (at.more) at.more += T * LANES;
  }
  if constexpr (T > 1)
    if (left) strip<DEPTHWISE_ROW, OB, T / 2, STRIDE>(s, at, left);
}

// A row that is complete, once more: functions that need registers of their own, and then the sums of their values.
inline void activate_row(const Step& s, float* y, float* channel_sums) {
  Vector all{};
  for (int64_t w = 0; w < s.output.width; w++) {
    const Vector v = activate(load(y + w * LANES), s);
    store(y + w * LANES, v);
    all += v;
  }
  if (channel_sums) store(channel_sums, load(channel_sums) + all);
}

template <bool DEPTHWISE_ROW, int OB, int STRIDE>
void strips(const Worker& w, const Step& s) {
  const float* x = w.start(s.input) - s.pad_h * s.input.row() - s.pad_w * LANES;
  const float* filters = s.mixed >= 0 ? w.own(s.mixed) : w.parameter<float>(s.weight.offset);
  const bool later = s.activation > RELU;
  const Share mine = shared_rows(w, s);
  for (int64_t unit = mine.begin; unit < mine.end; unit++) {
    const int64_t b = unit / s.output.height * OB, h = unit % s.output.height;
    float* channel_sums = s.sums < 0 ? nullptr : w.own(s.sums) + b * LANES;
    Strip at;
    at.x = x + h * s.stride_h * s.input.row() + (DEPTHWISE_ROW ? b * s.input.block() : 0);
    at.w = filters + b * s.length * LANES;
    at.y = w.start(s.output) + b * s.output.block() + h * s.output.row();
    at.more = s.other.exists() ? w.start(s.other) + b * s.other.block() + h * s.other.row() : nullptr;
    at.bias = s.bias < 0 ? nullptr : w.parameter<float>(s.bias) + b * LANES;
    at.channel_sums = later ? nullptr : channel_sums;
    at.channels = DEPTHWISE_ROW ? Share{0, 0} : seen_channels(s, b);
    strip<DEPTHWISE_ROW, OB, SUMS / OB, STRIDE>(s, at, s.output.width);
    for (int64_t i = 0; later && i < OB; i++)
      activate_row(s, at.y + i * s.output.block(), channel_sums ? channel_sums + i * LANES : nullptr);
  }
}

template <bool DEPTHWISE_ROW, int OB>
void strips(const Worker& w, const Step& s) {
  if (s.stride_w == 1)
    strips<DEPTHWISE_ROW, OB, 1>(w, s);
  else if (s.stride_w == 2)
    strips<DEPTHWISE_ROW, OB, 2>(w, s);
  else
    strips<DEPTHWISE_ROW, OB, 0>(w, s);
}

inline void convolve(const Worker& w, const Step& s) {
  if (s.sums >= 0) std::memset(w.own(s.sums), 0, s.output.blocks() * LANES * sizeof(float));
  if (s.kind == DEPTHWISE)
    strips<true, 1>(w, s);
  else if (pairs(w, s))
    strips<false, 2>(w, s);
  else
    strips<false, 1>(w, s);
}

}  // namespace
