// Convolutions: dense, in groups, and of every channel by itself.
#pragma once

#include "worker.h"

namespace {

// How many blocks of sums fit into the registers beside filters and pixels.
#if defined(__AVX512F__)
constexpr int SUMS = 16;
#elif defined(__ARM_NEON)
constexpr int SUMS = 6;
#else
constexpr int SUMS = 12 / PARTS;
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

// Memory that will be read soon, so many rows of so many bytes: it comes while something else is computed, a few lines at
// a time, because a processor waits for a few at once only.
struct Ahead {
  static constexpr int64_t LINE = 64;
  int64_t count = 0, bytes = 0, at_a_time = 0, row = 0;
  const char *next = nullptr, *end = nullptr;
  const char* rows[2 * LANES * MOST_ACTIVE];

  void clear() { count = row = 0, next = end = nullptr; }

  // As many lines at a time as it takes to have all after so many times
  void within(int64_t times) { at_a_time = count * ((bytes + LINE - 1) / LINE) / std::max<int64_t>(times, 1) + 1; }

  void fetch() {
    if (next >= end) {
      if (row == count) return;
      next = rows[row++], end = next + bytes;
    }
    const char* from = next;
    next += at_a_time * LINE;
    for (; from < next; from += LINE) __builtin_prefetch(from, 0, 2);
  }
};

// Where the filters of some blocks lie, and what will be read after them; nullptr if nobody knows.
struct Filters {
  const float* first;
  Ahead* ahead;
};

constexpr int MOST_APART = 8;  // pixels of a tile that need not lie side by side

// Some pixels, and blocks of filters: where they read and write. What there is not is nullptr.
struct Strip {
  const float *x, *w, *bias, *more;
  float *y, *channel_sums;
  Ahead* ahead;
  Share channels;
  int64_t x_of[MOST_APART], y_of[MOST_APART], more_of[MOST_APART];  // of each pixel, where they do not lie side by side
};

// What becomes of the sums of T pixels: more is added, they are activated, stored and added up.
template <int T, bool ROW>
inline void finish(const Step& s, const Strip& at, const Vector (&sums)[T][PARTS], int64_t b) {
  const bool positive = s.activation == RELU || s.activation == RELU6;
#pragma GCC unroll 4
  for (int p = 0; p < PARTS; p++) {
    const int64_t place = p * WIDTH;
    Vector all{};
#pragma GCC unroll 16
    for (int t = 0; t < T; t++) {
      Vector v = sums[t][p];
      if (at.more) v += load(at.more + b * s.other.block() + (ROW ? t * LANES : at.more_of[t]) + place);
      if (positive) v = relu(v);
      if (s.activation == RELU6) v = minimum(v, 6);
      store(at.y + b * s.output.block() + (ROW ? t * LANES : at.y_of[t]) + place, v);
      all += v;
    }
    if (float* to = at.channel_sums) store(to + b * LANES + place, load(to + b * LANES + place) + all);
  }
}

// A tile of T pixels and OB blocks of filters.
template <int OB, int T, bool ROW>
void dense_tile(const Step& s, const Strip& at) {
  const int64_t filters = s.length * LANES;  // of one block
  const float* w = at.w;
  int64_t x_of[T];
#pragma GCC unroll 16
  for (int t = 0; t < T; t++) x_of[t] = ROW ? t * LANES : at.x_of[t];
  Vector sums[OB][T][PARTS];
#pragma GCC unroll 2
  for (int b = 0; b < OB; b++)
#pragma GCC unroll 4
    for (int p = 0; p < PARTS; p++) {
      const Vector start = at.bias ? load(at.bias + b * LANES + p * WIDTH) : Vector{};
#pragma GCC unroll 16
      for (int t = 0; t < T; t++) sums[b][t][p] = start;
    }
  for (int64_t kh = 0; kh < s.kernel_h; kh++)
    for (int64_t kw = 0; kw < s.kernel_w; kw++) {
      const float* tap = at.x + kh * s.dilation_h * s.input.row() + kw * s.dilation_w * LANES;
      for (int64_t first = at.channels.begin; first < at.channels.end;) {
        const float* pixel = tap + s.input.channel(first);
        const int64_t count = std::min(LANES - first % LANES, at.channels.end - first);
        first += count;
        if (at.ahead) at.ahead->fetch();
        for (const float* end = pixel + count; pixel < end; pixel++, w += LANES) {
          Vector filter[OB][PARTS];
#pragma GCC unroll 2
          for (int b = 0; b < OB; b++)
#pragma GCC unroll 4
            for (int p = 0; p < PARTS; p++) filter[b][p] = load(w + b * filters + p * WIDTH);
#pragma GCC unroll 16
          for (int t = 0; t < T; t++) {
            const Vector value = pixel[x_of[t]] - Vector{};
#pragma GCC unroll 2
            for (int b = 0; b < OB; b++)
#pragma GCC unroll 4
              for (int p = 0; p < PARTS; p++) sums[b][t][p] += filter[b][p] * value;
          }
        }
      }
    }
#pragma GCC unroll 2
  for (int b = 0; b < OB; b++) finish<T, ROW>(s, at, sums[b], b);
}

// The same where every filter looks at the channel of its own number.
template <int T, bool ROW>
void depthwise_tile(const Step& s, const Strip& at) {
  const float* w = at.w;
  Vector sums[T][PARTS];
#pragma GCC unroll 16
  for (int t = 0; t < T; t++)
#pragma GCC unroll 4
    for (int p = 0; p < PARTS; p++) sums[t][p] = at.bias ? load(at.bias + p * WIDTH) : Vector{};
  for (int64_t kh = 0; kh < s.kernel_h; kh++)
    for (int64_t kw = 0; kw < s.kernel_w; kw++, w += LANES) {
      const float* pixel = at.x + kh * s.dilation_h * s.input.row() + kw * s.dilation_w * LANES;
#pragma GCC unroll 4
      for (int p = 0; p < PARTS; p++, pixel += WIDTH) {
        const Vector filter = load(w + p * WIDTH);
#pragma GCC unroll 16
        for (int t = 0; t < T; t++) sums[t][p] += filter * load(pixel + (ROW ? t * LANES : at.x_of[t]));
      }
    }
  finish<T, ROW>(s, at, sums, 0);
}

template <bool DEPTHWISE_ROW, int OB, int T, bool ROW>
void tile(const Step& s, const Strip& at, int64_t width) {
  if constexpr (T > 1)
    if (width < T) return tile<DEPTHWISE_ROW, OB, (T > 6 ? T / 2 : T - 1), ROW>(s, at, width);
  if constexpr (DEPTHWISE_ROW)
    depthwise_tile<T, ROW>(s, at);
  else
    dense_tile<OB, T, ROW>(s, at);
}

// So many of the pixels that are left: tiles are as alike as they can be, or powers of two.
inline int64_t tile_width(int64_t left, int64_t most) {
  if (most <= 6) {
    const int64_t tiles = (left + most - 1) / most;
    return (left + tiles - 1) / tiles;
  }
  while (most > left) most /= 2;
  return most;
}

// Pixels side by side, row by row
template <bool DEPTHWISE_ROW, int OB>
void strips_by_row(const Step& s, const Strip& from, Share rows) {
  for (int64_t h = rows.begin; h < rows.end; h++) {
    Strip at = from;
    at.x += h * s.stride_h * s.input.row(), at.y += h * s.output.row();
    if (at.more) at.more += h * s.other.row();
    for (int64_t left = s.output.width; left;) {
      const int64_t width = tile_width(left, SUMS / OB);
      tile<DEPTHWISE_ROW, OB, SUMS / OB, true>(s, at, width);
      left -= width, at.x += width * LANES, at.y += width * LANES;
      if (at.more) at.more += width * LANES;
    }
  }
}

// Pixels with a stride between them, or of rows that are no good multiple of a tile: a tile goes on in the next row.
template <bool DEPTHWISE_ROW, int OB>
void strips_apart(const Step& s, Strip at, Share rows) {
  constexpr int MOST = std::min(SUMS / OB, MOST_APART);
  int64_t h = rows.begin, i = 0;
  for (int64_t left = (rows.end - rows.begin) * s.output.width; left;) {
    const int64_t width = tile_width(left, MOST);
    for (int64_t t = 0; t < width; t++) {
      at.x_of[t] = h * s.stride_h * s.input.row() + i * s.stride_w * LANES;
      at.y_of[t] = h * s.output.row() + i * LANES;
      at.more_of[t] = h * s.other.row() + i * LANES;
      if (++i == s.output.width) i = 0, h++;
    }
    tile<DEPTHWISE_ROW, OB, MOST, false>(s, at, width);
    left -= width;
  }
}

// A row that is complete, once more: functions that need registers of their own, and then the sums of their values.
inline void activate_row(const Step& s, float* y, float* channel_sums) {
  Vector all[PARTS] = {};
  for (int64_t i = 0; i < s.output.width; i++)
#pragma GCC unroll 4
    for (int p = 0; p < PARTS; p++, y += WIDTH) {
      const Vector v = activate(load(y), s);
      store(y, v);
      all[p] += v;
    }
  for (int p = 0; channel_sums && p < PARTS; p++, channel_sums += WIDTH)
    store(channel_sums, load(channel_sums) + all[p]);
}

// How often a tile of these rows turns to other channels.
template <int OB>
int64_t turns(const Step& s, const Strip& at, Share rows) {
  const int64_t pixels = (rows.end - rows.begin) * s.output.width, channels = at.channels.end - at.channels.begin;
  return pixels * OB / SUMS * s.kernel_h * s.kernel_w * ((channels + LANES - 1) / LANES);
}

// The rows of a block that a thread has.
template <bool DEPTHWISE_ROW, int OB>
void strips(const Worker& w, const Step& s, int64_t b, Share rows, const Filters& filters) {
  const bool later = s.activation > RELU6, fits = s.output.width % SUMS == 0 || s.output.width > 2 * SUMS;
  float* channel_sums = s.sums < 0 ? nullptr : w.own(s.sums) + b * LANES;
  Strip at;
  at.x = w.start(s.input) - s.pad_h * s.input.row() - s.pad_w * LANES + (DEPTHWISE_ROW ? b * s.input.block() : 0);
  at.w = filters.first;
  at.y = w.start(s.output) + b * s.output.block();
  at.more = s.other.exists() ? w.start(s.other) + b * s.other.block() : nullptr;
  at.bias = s.bias < 0 ? nullptr : w.parameter<float>(s.bias) + b * LANES;
  at.channel_sums = later ? nullptr : channel_sums;
  at.channels = DEPTHWISE_ROW ? Share{0, 0} : seen_channels(s, b);
  at.ahead = filters.ahead;
  if (at.ahead) at.ahead->within(turns<OB>(s, at, rows));
  if (s.stride_w == 1 && (SUMS >= 16 || fits))
    strips_by_row<DEPTHWISE_ROW, OB>(s, at, rows);
  else
    strips_apart<DEPTHWISE_ROW, OB>(s, at, rows);
  for (int64_t h = rows.begin; later && h < rows.end; h++)
    for (int64_t i = 0; i < OB; i++)
      activate_row(s, at.y + i * s.output.block() + h * s.output.row(), channel_sums ? channel_sums + i * LANES : nullptr);
}

// find(blocks) -> their filters
template <bool DEPTHWISE_ROW, int OB, class F>
void strips(const Worker& w, const Step& s, F find) {
  const Share mine = shared_rows(w, s);
  for (int64_t unit = mine.begin, end; unit < mine.end; unit = end) {
    const int64_t first = unit / s.output.height * s.output.height, b = first / s.output.height * OB;
    end = std::min(mine.end, first + s.output.height);
    strips<DEPTHWISE_ROW, OB>(w, s, b, {unit - first, end - first}, find(Share{b, b + OB}));
  }
}

template <class F>
void convolve(const Worker& w, const Step& s, F find) {
  if (s.sums >= 0) std::memset(w.own(s.sums), 0, s.output.blocks() * LANES * sizeof(float));
  if (s.kind == DEPTHWISE)
    strips<true, 1>(w, s, find);
  else if (pairs(w, s))
    strips<false, SUMS >= 16 ? 2 : 1>(w, s, find);
  else
    strips<false, 1>(w, s, find);
}

inline void convolve(const Worker& w, const Step& s) {
  const float* all = s.mixed >= 0 ? w.own(s.mixed) : w.parameter<float>(s.weight.offset);
  convolve(w, s, [&](Share blocks) -> Filters { return {all + blocks.begin * s.length * LANES, nullptr}; });
}

}  // namespace
