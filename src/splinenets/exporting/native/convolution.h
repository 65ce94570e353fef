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

constexpr bool MANY_REGISTERS = SUMS >= 16;
constexpr int MOST_ROWS = MANY_REGISTERS ? 4 : 1;  // of an image in a tile

// Pixels of a tile for so many blocks of filters
constexpr int most_pixels(int blocks) { return MANY_REGISTERS && blocks > 1 ? 24 / blocks : SUMS / blocks; }

// A thread has some rows of one block of filters after the other; it mixes the filters of these blocks alone, for itself.
inline bool pairs(const Worker& w, const Step& s) {
  return MANY_REGISTERS && s.groups == 1 && s.output.blocks() % (2 * w.size) == 0;
}

inline Share shared_rows(const Worker& w, const Step& s) { return w.share(s.output.units() / (pairs(w, s) ? 2 : 1)); }

inline Share shared_blocks(const Worker& w, const Step& s) {
  const Share mine = shared_rows(w, s);
  const int64_t many = pairs(w, s) ? 2 : 1;
  if (mine.begin == mine.end) return {0, 0};
  return {mine.begin / s.output.height * many, (mine.end - 1) / s.output.height * many + many};
}

constexpr int MOST_APART = 8;  // pixels of a tile that need not lie side by side

// Some pixels, and blocks of filters: where they read and write. What there is not is nullptr.
struct Strip {
  const float *x, *w, *bias, *more;
  float *y, *channel_sums;
  Share channels;
  int64_t x_row, y_row, more_row;                                   // from a row of pixels to the next
  int64_t x_of[MOST_APART], y_of[MOST_APART], more_of[MOST_APART];  // of each pixel, where they do not lie side by side

  void go(int64_t rows, int64_t columns) {
    x += rows * x_row + columns * LANES, y += rows * y_row + columns * LANES;
    if (more) more += rows * more_row + columns * LANES;
  }
};

// Where the pixels of a tile lie: in R rows, each with C side by side.
template <int R, int C>
struct Grid {
  static constexpr int COUNT = R * C;
  static int64_t x(const Strip& at, int t) { return t / C * at.x_row + t % C * LANES; }
  static int64_t y(const Strip& at, int t) { return t / C * at.y_row + t % C * LANES; }
  static int64_t more(const Strip& at, int t) { return t / C * at.more_row + t % C * LANES; }
};

// Or anywhere.
template <int T>
struct Scattered {
  static constexpr int COUNT = T;
  static int64_t x(const Strip& at, int t) { return at.x_of[t]; }
  static int64_t y(const Strip& at, int t) { return at.y_of[t]; }
  static int64_t more(const Strip& at, int t) { return at.more_of[t]; }
};

// What becomes of the sums of some pixels: more is added, they are activated, stored and added up.
template <class Pixels, int T = Pixels::COUNT>
inline void finish(const Step& s, const Strip& at, const Vector (&sums)[T][PARTS], int64_t b) {
  const bool positive = s.activation == RELU || s.activation == RELU6;
#pragma GCC unroll 4
  for (int p = 0; p < PARTS; p++) {
    const int64_t place = p * WIDTH;
    Vector all{};
#pragma GCC unroll 24
    for (int t = 0; t < T; t++) {
      Vector v = sums[t][p];
      if (at.more) v += load(at.more + b * s.other.block() + Pixels::more(at, t) + place);
      if (positive) v = relu(v);
      if (s.activation == RELU6) v = minimum(v, 6);
      store(at.y + b * s.output.block() + Pixels::y(at, t) + place, v);
      all += v;
    }
    if (float* to = at.channel_sums) store(to + b * LANES + place, load(to + b * LANES + place) + all);
  }
}

// A tile of some pixels and OB blocks of filters.
template <int OB, class Pixels, int T = Pixels::COUNT>
void dense_tile(const Step& s, const Strip& at) {
  const int64_t filters = s.length * LANES;  // of one block
  const float* w = at.w;
  int64_t x_of[T];
#pragma GCC unroll 24
  for (int t = 0; t < T; t++) x_of[t] = Pixels::x(at, t);
  Vector sums[OB][T][PARTS];
#pragma GCC unroll 2
  for (int b = 0; b < OB; b++)
#pragma GCC unroll 4
    for (int p = 0; p < PARTS; p++) {
      const Vector start = at.bias ? load(at.bias + b * LANES + p * WIDTH) : Vector{};
#pragma GCC unroll 24
      for (int t = 0; t < T; t++) sums[b][t][p] = start;
    }
  // everything that does not change is computed beforehand: between two rounds of the inner loop nothing else has time
  const int64_t high = s.kernel_h, wide = s.kernel_w, down = s.dilation_h * s.input.row(), right = s.dilation_w * LANES;
  const int64_t block = s.input.block(), lane = at.channels.begin % LANES, channels = at.channels.end - at.channels.begin;
  const float* row = at.x + at.channels.begin / LANES * block;
  for (int64_t kh = 0; kh < high; kh++, row += down) {
    const float* tap = row;
    for (int64_t kw = 0; kw < wide; kw++, tap += right) {
      const float* pixel = tap + lane;
      int64_t count = std::min(LANES - lane, channels);
      for (int64_t left = channels; left; left -= count, count = std::min<int64_t>(LANES, left), pixel += block - LANES) {
        for (const float* end = pixel + count; pixel < end; pixel++, w += LANES) {
          Vector filter[OB][PARTS];
#pragma GCC unroll 2
          for (int b = 0; b < OB; b++)
#pragma GCC unroll 4
            for (int p = 0; p < PARTS; p++) filter[b][p] = load(w + b * filters + p * WIDTH);
#pragma GCC unroll 24
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
  }
#pragma GCC unroll 2
  for (int b = 0; b < OB; b++) finish<Pixels>(s, at, sums[b], b);
}

// The same where every filter looks at the channel of its own number.
template <class Pixels, int T = Pixels::COUNT>
void depthwise_tile(const Step& s, const Strip& at) {
  const float* w = at.w;
  Vector sums[T][PARTS];
#pragma GCC unroll 24
  for (int t = 0; t < T; t++)
#pragma GCC unroll 4
    for (int p = 0; p < PARTS; p++) sums[t][p] = at.bias ? load(at.bias + p * WIDTH) : Vector{};
  for (int64_t kh = 0; kh < s.kernel_h; kh++)
    for (int64_t kw = 0; kw < s.kernel_w; kw++, w += LANES) {
      const float* pixel = at.x + kh * s.dilation_h * s.input.row() + kw * s.dilation_w * LANES;
#pragma GCC unroll 4
      for (int p = 0; p < PARTS; p++, pixel += WIDTH) {
        const Vector filter = load(w + p * WIDTH);
#pragma GCC unroll 24
        for (int t = 0; t < T; t++) sums[t][p] += filter * load(pixel + Pixels::x(at, t));
      }
    }
  finish<Pixels>(s, at, sums, 0);
}

template <bool ONE_EACH, int OB, class Pixels>
void tile(const Step& s, const Strip& at) {
  if constexpr (ONE_EACH)
    depthwise_tile<Pixels>(s, at);
  else
    dense_tile<OB, Pixels>(s, at);
}

typedef void (*Tile)(const Step&, const Strip&);

template <bool ONE_EACH, int OB, int R, int... C>
Tile grid_tile(int64_t columns, std::integer_sequence<int, C...>) {
  static constexpr Tile tiles[] = {tile<ONE_EACH, OB, Grid<R, C + 1>>...};
  return tiles[columns - 1];
}

// What computes so many rows and columns, not more than `most_pixels` together
template <bool ONE_EACH, int OB, int R = MOST_ROWS>
Tile grid_tile(int64_t rows, int64_t columns) {
  if constexpr (R > 1)
    if (rows < R) return grid_tile<ONE_EACH, OB, R - 1>(rows, columns);
  return grid_tile<ONE_EACH, OB, R>(columns, std::make_integer_sequence<int, most_pixels(OB) / R>());
}

template <bool ONE_EACH, int OB, int... T>
Tile scattered_tile(int64_t pixels, std::integer_sequence<int, T...>) {
  static constexpr Tile tiles[] = {tile<ONE_EACH, OB, Scattered<T + 1>>...};
  return tiles[pixels - 1];
}

// So many of those that are left that all parts are as alike as they can be
inline int64_t alike(int64_t left, int64_t most) {
  const int64_t parts = (left + most - 1) / most;
  return (left + parts - 1) / parts;
}

// Rows that fit into a tile beside each other: more than one only where they are whole
inline int64_t rows_together(int64_t width, int64_t most) {
  return std::max<int64_t>(std::min<int64_t>(most / width, MOST_ROWS), 1);
}

// Pixels side by side, some rows at a time
template <bool ONE_EACH, int OB>
void strips_by_row(const Step& s, const Strip& from, Share rows) {
  constexpr int MOST = most_pixels(OB);
  const int64_t together = rows_together(s.output.width, MOST);
  for (int64_t h = rows.begin, high; h < rows.end; h += high) {
    high = alike(rows.end - h, together);
    Strip at = from;
    at.go(h, 0);
    for (int64_t left = s.output.width, wide; left; left -= wide, at.go(0, wide)) {
      wide = alike(left, MOST);
      grid_tile<ONE_EACH, OB>(high, wide)(s, at);
    }
  }
}

// Pixels with a stride between them, or of rows that are no good multiple of a tile: a tile goes on in the next row.
template <bool ONE_EACH, int OB>
void strips_apart(const Step& s, Strip at, Share rows) {
  constexpr int MOST = std::min(most_pixels(OB), MOST_APART);
  int64_t h = rows.begin, i = 0;
  for (int64_t left = (rows.end - rows.begin) * s.output.width, count; left; left -= count) {
    count = alike(left, MOST);
    for (int64_t t = 0; t < count; t++) {
      at.x_of[t] = h * at.x_row + i * s.stride_w * LANES;
      at.y_of[t] = h * at.y_row + i * LANES;
      at.more_of[t] = h * at.more_row + i * LANES;
      if (++i == s.output.width) i = 0, h++;
    }
    scattered_tile<ONE_EACH, OB>(count, std::make_integer_sequence<int, MOST>())(s, at);
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
  for (int p = 0; channel_sums && p < PARTS; p++, channel_sums += WIDTH) store(channel_sums, load(channel_sums) + all[p]);
}

// The rows of a block that a thread has.
template <bool ONE_EACH, int OB>
void strips(const Worker& w, const Step& s, int64_t b, Share rows, const float* filters) {
  const bool later = s.activation > RELU6, fits = s.output.width % SUMS == 0 || s.output.width > 2 * SUMS;
  const bool by_row = s.stride_w == 1 && (MANY_REGISTERS || fits);
  float* channel_sums = s.sums < 0 ? nullptr : w.own(s.sums) + b * LANES;
  Strip at;
  at.x = w.start(s.input) - s.pad_h * s.input.row() - s.pad_w * LANES + (ONE_EACH ? b * s.input.block() : 0);
  at.w = filters;
  at.y = w.start(s.output) + b * s.output.block();
  at.more = s.other.exists() ? w.start(s.other) + b * s.other.block() : nullptr;
  at.bias = s.bias < 0 ? nullptr : w.parameter<float>(s.bias) + b * LANES;
  at.channel_sums = later ? nullptr : channel_sums;
  at.channels = ONE_EACH ? Share{0, 0} : seen_channels(s, b);
  at.x_row = s.stride_h * s.input.row(), at.y_row = s.output.row(), at.more_row = s.other.row();
  if (by_row)
    strips_by_row<ONE_EACH, OB>(s, at, rows);
  else
    strips_apart<ONE_EACH, OB>(s, at, rows);
  for (int64_t h = rows.begin; later && h < rows.end; h++)
    for (int64_t i = 0; i < OB; i++)
      activate_row(s, at.y + i * s.output.block() + h * s.output.row(), channel_sums ? channel_sums + i * LANES : nullptr);
}

// find(blocks) -> their filters
template <bool ONE_EACH, int OB, class F>
void strips(const Worker& w, const Step& s, F find) {
  const Share mine = shared_rows(w, s);
  for (int64_t unit = mine.begin, end; unit < mine.end; unit = end) {
    const int64_t first = unit / s.output.height * s.output.height, b = first / s.output.height * OB;
    end = std::min(mine.end, first + s.output.height);
    strips<ONE_EACH, OB>(w, s, b, {unit - first, end - first}, find(Share{b, b + OB}));
  }
}

template <class F>
void convolve(const Worker& w, const Step& s, F find) {
  w.begin_sums(s, s.output);
  if (s.kind == DEPTHWISE)
    strips<true, 1>(w, s, find);
  else if (pairs(w, s))
    strips<false, MANY_REGISTERS ? 2 : 1>(w, s, find);
  else
    strips<false, 1>(w, s, find);
}

inline void convolve(const Worker& w, const Step& s) {
  const float* all = s.mixed >= 0 ? w.own(s.mixed) : w.parameter<float>(s.weight.offset);
  convolve(w, s, [&](Share blocks) { return all + blocks.begin * s.length * LANES; });
}

}  // namespace
