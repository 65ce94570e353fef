// Everything that is neither a convolution nor a spline.
#pragma once

#include "curves.h"

namespace {

// Lanes behind the last channel of a vector are read by dot products, and must be numbers.
inline void clear_rest(const Worker& w, const Image& x) {
  for (int64_t c = x.channels; c < x.blocks() * LANES; c++) w.start(x)[x.channel(c)] = 0;
}

inline void linear(const Worker& w, const Step& s) {
  int64_t rows[MOST_ACTIVE] = {0};
  float shares[MOST_ACTIVE] = {1};
  const int64_t count = s.basis < 0 ? 1 : gather(w, s, 0, rows, shares);
  const Share mine = w.share(s.output.channels);
  const Image x = flat(s.input);
  w.typed(s.weight, [&](auto* weight) {
    for (int64_t o = mine.begin; o < mine.end; o++) {
      float y = s.bias < 0 ? 0 : w.parameter<float>(s.bias)[o];
      for (int64_t a = 0; a < count; a++) {
        const int64_t number = rows[a] * s.rows + o;
        const auto* row = weight + number * s.length;
        float answer;
        multiply_pieces<1>(w, x, {0, x.units()}, &row, &answer);
        y += shares[a] * w.scale(s.weight, number) * answer;
      }
      w.start(s.output)[s.output.channel(o)] = activate(y, s);
    }
  });
  if (mine.end == s.output.channels) clear_rest(w, s.output);
}

// Pixels of one row or column that a window looks at: the first, how far apart they are, and how many.
struct Taps {
  int64_t first, step, count;
};

struct Window {
  int64_t kernel, stride, pad, dilation;
};

// Those inside an image of this size. A kernel of 0 adapts: the image is shared out to as many places as there are.
inline Taps taps(int64_t place, const Window& window, int64_t size, int64_t places) {
  if (!window.kernel) {
    const int64_t first = place * size / places, end = ((place + 1) * size + places - 1) / places;
    return {first, 1, end - first};
  }
  const int64_t first = place * window.stride - window.pad, d = window.dilation;
  const int64_t begin = first < 0 ? (d - 1 - first) / d : 0;
  const int64_t end = first < size ? std::min(window.kernel, (size - first + d - 1) / d) : 0;
  return {first + begin * d, d, std::max<int64_t>(end - begin, 0)};
}

// Of a row or a column of a window; with `border`, pixels of the padding count too.
inline Taps row_taps(const Step& s, int64_t y, bool border = false) {
  const int64_t wide = border ? s.pad_h : 0;
  return taps(y, {s.kernel_h, s.stride_h, s.pad_h - wide, s.dilation_h}, s.input.height + 2 * wide, s.output.height);
}

inline Taps column_taps(const Step& s, int64_t x, bool border = false) {
  const int64_t wide = border ? s.pad_w : 0;
  return taps(x, {s.kernel_w, s.stride_w, s.pad_w - wide, s.dilation_w}, s.input.width + 2 * wide, s.output.width);
}

// Every window: its pixels are added to `start`, and the sum is multiplied by what `share(row, column)` says.
template <class Add, class Part_of>
void pool(const Worker& w, const Step& s, float start, Add add, Part_of share) {
  const Share mine = w.share(s.output.units());
  w.begin_sums(s, s.output);
  for (int64_t unit = mine.begin; unit < mine.end; unit++) {
    const float* block = w.start(s.input) + unit / s.output.height * s.input.block();
    const int64_t y = unit % s.output.height;
    const Taps rows = row_taps(s, y);
    float* to = w.row(s.output, unit);
    for (int64_t x = 0; x < s.output.width; x++, to += LANES) {
      const Taps columns = column_taps(s, x);
      const float factor = share(rows, columns, y, x);
#pragma GCC unroll 4
      for (int p = 0; p < PARTS; p++) {
        Vector all = Vector{} + start;
        for (int64_t i = 0; i < rows.count; i++) {
          const float* from = block + (rows.first + i * rows.step) * s.input.row() + columns.first * LANES + p * WIDTH;
          for (int64_t j = 0; j < columns.count; j++, from += columns.step * LANES) all = add(all, load(from));
        }
        store(to + p * WIDTH, activate(all * factor, s));
      }
    }
    w.add_row(s, s.output, unit);
  }
}

inline void pool_most(const Worker& w, const Step& s) {
  pool(
      w, s, -INFINITY, [](Vector most, Vector v) { return (v > most) | (v != v) ? v : most; },
      [](const Taps&, const Taps&, int64_t, int64_t) { return 1.0f; });
}

inline void pool_average(const Worker& w, const Step& s) {
  pool(
      w, s, 0, [](Vector all, Vector v) { return all + v; },
      [&](const Taps& rows, const Taps& columns, int64_t y, int64_t x) {
        const int64_t count =
            s.inclusive ? row_taps(s, y, true).count * column_taps(s, x, true).count : rows.count * columns.count;
        return 1 / float(std::max<int64_t>(count, 1));
      });
}

// Every thread's part of the sum of each channel.
inline void add_up(const Worker& w, const Step& s) {
  w.begin_sums(s, s.input);
  const Share mine = w.share(s.input.units());
  for (int64_t unit = mine.begin; unit < mine.end; unit++) w.add_row(s, s.input, unit);
}

inline void mean(const Worker& w, const Step& s) {
  const float share = 1 / float(s.input.height * s.input.width);
  for (int64_t c = 0; c < s.output.blocks() * LANES; c += WIDTH)
    store(w.start(s.output) + s.output.channel(c), w.totals(s.sums + c) * share);
  clear_rest(w, s.output);
}

// Every stride-th pixel; channels that the input does not have are 0.
inline void subsample(const Worker& w, const Step& s) {
  const Share mine = w.share(s.output.units());
  for (int64_t unit = mine.begin; unit < mine.end; unit++) {
    const int64_t b = unit / s.output.height, h = unit % s.output.height;
    const float* x = w.start(s.input) + b * s.input.block() + h * s.stride_h * s.input.row();
    float* y = w.row(s.output, unit);
    for (int64_t i = 0; i < s.output.width; i++)
      for (int p = 0; p < LANES; p += WIDTH)
        store(y + i * LANES + p, b < s.input.blocks() ? load(x + i * s.stride_w * LANES + p) : Vector{});
  }
}

// f(pixel, pixel of `other`, the number of its first channel) for some channels of every pixel. An `other` of one pixel is
// the same for all; without one it is 0.
template <class F>
void pixelwise(const Worker& w, const Step& s, F f) {
  const Share mine = w.share(s.output.units());
  const bool one = s.other.height == 1 && s.other.width == 1;
  w.begin_sums(s, s.output);
  for (int64_t unit = mine.begin; unit < mine.end; unit++) {
    const int64_t b = unit / s.output.height, h = unit % s.output.height;
    const float* x = w.start(s.input) + b * s.input.block() + h * s.input.row();
    const float* more = s.other.exists() ? w.start(s.other) + b * s.other.block() + (one ? 0 : h * s.other.row()) : nullptr;
    float* y = w.row(s.output, unit);
    for (int64_t i = 0; i < s.output.width * LANES; i += WIDTH) {
      const Vector other = more ? load(more + (one ? i % LANES : i)) : Vector{};
      store(y + i, activate(f(load(x + i), other, b * LANES + i % LANES), s));
    }
    w.add_row(s, s.output, unit);
  }
}

// Factors and summands of each channel; without them 1 and 0.
inline Vector affine(const Worker& w, const Step& s, Vector v, int64_t channel) {
  if (s.weight.offset >= 0) v *= load(w.parameter<float>(s.weight.offset) + channel);
  return s.bias < 0 ? v : v + load(w.parameter<float>(s.bias) + channel);
}

// The mean of numbers and 1 / their deviation.
struct Moments {
  float mean, factor;
};

// Some channels of some rows and columns.
struct Region {
  Share channels, rows, columns;
};

// f(block, lanes of it) for every block that has some of the channels
template <class F>
void visit_blocks(Share channels, F f) {
  for (int64_t c = channels.begin; c < channels.end; c = (c / LANES + 1) * LANES)
    f(c / LANES, Share{c % LANES, std::min<int64_t>(LANES, channels.end - c / LANES * LANES)});
}

// f(where a pixel of a block of channels lies, from the start of the image) for all of them
template <class F>
void visit_pixels(const Image& x, const Region& at, int64_t block, F f) {
  for (int64_t h = at.rows.begin; h < at.rows.end; h++)
    for (int64_t i = at.columns.begin; i < at.columns.end; i++) f(block * x.block() + h * x.row() + i * LANES);
}

template <class F>
float add_up(const Worker& w, const Image& x, const Region& at, F f) {
  float all = 0;
  visit_blocks(at.channels, [&](int64_t block, Share lanes) {
    Vector sums[PARTS] = {};
    visit_pixels(x, at, block, [&](int64_t place) {
      for (int p = 0; p < PARTS; p++) sums[p] += f(load(w.start(x) + place + p * WIDTH));
    });
    for (int64_t i = lanes.begin; i < lanes.end; i++) all += sums[i / WIDTH][i % WIDTH];
  });
  return all;
}

inline Moments moments(const Worker& w, const Step& s, const Region& at) {
  const float count =
      float((at.channels.end - at.channels.begin) * (at.rows.end - at.rows.begin) * (at.columns.end - at.columns.begin));
  const float mean = add_up(w, s.input, at, [](Vector v) { return v; }) / count;
  const float variance = add_up(w, s.input, at, [&](Vector v) { return (v - mean) * (v - mean); }) / count;
  return {mean, 1 / std::sqrt(variance + float(s.epsilon))};
}

// Other lanes may belong to another thread; those behind the last channel become 0.
inline void store_lanes(float* to, const float* v, Share lanes, bool last) {
  for (int64_t i = lanes.begin; i < lanes.end; i++) to[i] = v[i];
  for (int64_t i = lanes.end; last && i < LANES; i++) to[i] = 0;
}

inline void standardise(const Worker& w, const Step& s, const Region& at, const Moments& found) {
  const bool last = at.channels.end == s.output.channels;
  visit_blocks(at.channels, [&](int64_t block, Share lanes) {
    const float* x = w.start(s.input) + block * s.input.block();
    float* y = w.start(s.output) + block * s.output.block();
    for (int64_t h = at.rows.begin; h < at.rows.end; h++)
      for (int64_t i = at.columns.begin; i < at.columns.end; i++) {
        float values[LANES];
        for (int p = 0; p < LANES; p += WIDTH) {
          const Vector v = (load(x + h * s.input.row() + i * LANES + p) - found.mean) * found.factor;
          store(values + p, activate(affine(w, s, v, block * LANES + p), s));
        }
        store_lanes(y + h * s.output.row() + i * LANES, values, lanes, last);
      }
  });
}

// All channels of every pixel, or groups of channels of the whole image, have mean 0 and variance 1.
inline void norm(const Worker& w, const Step& s) {
  const int64_t channels = s.input.channels, height = s.input.height, width = s.input.width;
  const Share mine = w.share(s.groups ? s.groups : height * width);
  for (int64_t i = mine.begin; i < mine.end; i++) {
    Region at{{0, channels}, {i / width, i / width + 1}, {i % width, i % width + 1}};
    if (s.groups) at = {{i * (channels / s.groups), (i + 1) * (channels / s.groups)}, {0, height}, {0, width}};
    standardise(w, s, at, moments(w, s, at));
  }
}

// A row of some channels of one block: `count` lanes of every pixel, or zeros where there is no such pixel
inline void copy_lanes(const Step& s, const float* x, float* y, int64_t count) {
  for (int64_t i = 0; i < s.output.width; i++, y += LANES) {
    const int64_t from = i - s.pad_w;
    if (x && from >= 0 && from < s.input.width)
      std::memmove(y, x + from * LANES, count * sizeof(float));
    else
      std::memset(y, 0, count * sizeof(float));
  }
}

// Some channels, from one image to another that may be larger; threads take whole rows, as channels of several copies may
// share a block. Lanes behind the last channel become 0.
inline void copy(const Worker& w, const Step& s) {
  const Share mine = w.share(s.output.height);
  const int64_t end = s.target + s.count, rest = end == s.output.channels ? -end & (LANES - 1) : 0;
  for (int64_t h = mine.begin; h < mine.end; h++) {
    const bool inside = h >= s.pad_h && h < s.pad_h + s.input.height;
    const float* x = w.start(s.input) + (inside ? h - s.pad_h : 0) * s.input.row();
    float* y = w.start(s.output) + h * s.output.row();
    for (int64_t c = 0, count; c < s.count; c += count) {
      const int64_t from = s.source + c, to = s.target + c;
      count = std::min({s.count - c, LANES - from % LANES, LANES - to % LANES});
      copy_lanes(s, inside ? x + s.input.channel(from) : nullptr, y + s.output.channel(to), count);
    }
    if (rest) copy_lanes(s, nullptr, y + s.output.channel(end), rest);
  }
}

inline void input(const Worker& w, const Step& s, const float* image) {
  const Image& y = s.output;
  const Share mine = w.share(y.units());
  w.begin_sums(s, y);
  for (int64_t unit = mine.begin; unit < mine.end; unit++) {
    const int64_t first = unit / y.height * LANES, count = std::min<int64_t>(LANES, y.channels - first);
    const float* from = image + (first * y.height + unit % y.height) * y.width;
    float* to = w.row(y, unit);
    for (int64_t i = 0; i < y.width; i++, to += LANES) {
      for (int p = 0; count < LANES && p < LANES; p += WIDTH) store(to + p, Vector{});
      for (int64_t lane = 0; lane < count; lane++) to[lane] = from[lane * y.height * y.width + i];
    }
    w.add_row(s, y, unit);
  }
}

inline void tell(const Worker& w, const Step& s, const float* told) {
  for (int64_t i = 0; i < s.count; i++)
    w.start(s.output)[s.output.channel(s.target + i)] = w.content.told[s.source + i].position(told[s.source + i]);
}

inline void output(const Worker& w, const Step& s, float* outputs) {
  if (w.me == 0)
    for (int64_t c = 0; c < s.input.channels; c++) outputs[c] = w.start(s.input)[s.input.channel(c)];
}

inline void run(const Worker& w, const Step& s, const Sample& sample) {
  switch (s.kind) {
    case INPUT:
      return input(w, s, sample.image);
    case CONV:
    case DEPTHWISE:
      return convolve(w, s);
    case LINEAR:
      return linear(w, s);
    case MAXPOOL:
      return pool_most(w, s);
    case AVGPOOL:
      return pool_average(w, s);
    case SUM:
      return add_up(w, s);
    case MEAN:
      return mean(w, s);
    case ADD:
      return pixelwise(w, s, [](Vector x, Vector other, int64_t) { return x + other; });
    case SUBTRACT:
      return pixelwise(w, s, [](Vector x, Vector other, int64_t) { return x - other; });
    case MULTIPLY:
      return pixelwise(w, s, [](Vector x, Vector other, int64_t) { return x * other; });
    case AFFINE:
      return pixelwise(w, s, [&](Vector x, Vector, int64_t channel) { return affine(w, s, x, channel); });
    case NORM:
      return norm(w, s);
    case COPY:
      return copy(w, s);
    case SUBSAMPLE:
      return subsample(w, s);
    case PROJECT:
      return project(w, s);
    case LOCATE:
      return find_position(w, s);
    case MIX:
      return mix(w, s);
    case TELL:
      return tell(w, s, sample.told);
    case PLACE:
      return place(w, s);
    case OUTPUT:
      return output(w, s, sample.outputs);
  }
}

}  // namespace
