// Whether a file's steps stay inside their memory: asked once, before anything runs. Nothing else in the engine checks.
#pragma once

#include "worker.h"

#include <cmath>
#include <initializer_list>
#include <stdexcept>

namespace {

constexpr int64_t MOST_STEPS = int64_t(1) << 16;
constexpr int64_t MOST_SIZE = int64_t(1) << 24;   // of anything that is counted
constexpr int64_t MOST_ARENA = int64_t(1) << 28;  // floats: a gigabyte
constexpr int64_t MOST_WORK = int64_t(1) << 39;   // multiplications for an image: dozens of the largest networks in use

inline void require(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(what);
}

// A product of sizes, none of them negative; one that no number can hold is refused.
inline int64_t times(std::initializer_list<int64_t> factors) {
  int64_t product = 1;
  for (int64_t factor : factors)
    require(factor >= 0 && !__builtin_mul_overflow(product, factor, &product), "a size is impossible");
  return product;
}

class Checker {
 public:
  explicit Checker(const Content& content) : content(content) {}

  void program() {
    require(content.arena >= 0 && content.arena <= MOST_ARENA, "it wants more memory than a gigabyte");
    require(content.count <= MOST_STEPS, "it has too many steps");
    int64_t inputs = 0, outputs = 0;
    for (int64_t i = 0; i < content.count; i++) {
      step(i);
      inputs += content.steps[i].kind == INPUT;
      outputs += content.steps[i].kind == OUTPUT;
    }
    require(inputs == 1 && outputs == 1, "it needs one input and one output");
    for (int64_t i = 0; i < content.told_count; i++) told(content.told[i]);
  }

 private:
  const Content& content;
  int64_t work = 0;

  void step(int64_t number) {
    const Step& s = content.steps[number];
    try {
      numbers(s);
      kind(s);
      require(work <= MOST_WORK, "it would never end");
    } catch (const std::invalid_argument& error) {
      throw std::invalid_argument("step " + std::to_string(number) + " of kind " + std::to_string(s.kind) + ": " +
                                  error.what());
    }
  }

  static void told(const Told& t) {
    const float range = float(t.high) - float(t.low);
    require(std::memchr(t.name, 0, sizeof t.name) != nullptr, "the name of a condition has no end");
    require(std::isfinite(t.low) && std::isfinite(t.high) && std::isfinite(range) && range != 0, "a range is impossible");
  }

  // ---- numbers by themselves

  static void between(int64_t value, int64_t least, int64_t most) {
    require(value >= least && value <= most, "a number is out of its range");
  }

  static void numbers(const Step& s) {
    for (int64_t size : {s.kernel_h, s.kernel_w, s.pad_h, s.pad_w, s.groups, s.splines, s.dims, s.knots, s.rows, s.length,
                         s.decision_knots, s.source, s.target, s.count})
      between(size, 0, MOST_SIZE);
    for (int64_t size : {s.stride_h, s.stride_w, s.dilation_h, s.dilation_w}) between(size, 1, MOST_SIZE);
    for (int64_t degree : {s.degree, s.decision_degree}) between(degree, 0, MOST_DEGREE);
    between(s.kept, 0, 1);
    between(s.blocked, 0, 1);
    between(s.based, 0, 1);
    between(s.activation, 0, ACTIVATION_COUNT - 1);
    between(s.weight.type, 0, TYPE_COUNT - 1);
    for (int64_t place : {s.sums, s.mixed, s.narrow, s.basis}) between(place, -1, MOST_ARENA);
    for (const Image* x : {&s.input, &s.output, &s.other})  // also those that a step does not have: strides are computed
      for (int64_t size : {x->channels, x->height, x->width, x->margin}) between(size, 0, MOST_SIZE);
  }

  // ---- memory

  void floats(int64_t offset, int64_t count) const {
    require(offset >= 0 && count <= content.arena && offset <= content.arena - count, "it reaches beyond its memory");
  }

  void image(const Image& x) const {
    between(x.channels, 1, MOST_SIZE);
    for (int64_t size : {x.height, x.width}) between(size, 1, MOST_SIZE);
    between(x.margin, 0, MOST_SIZE);
    between(x.own, 0, 1);
    floats(x.offset, times({x.blocks() * LANES, x.height + 2 * x.margin, x.width + 2 * x.margin}));
  }

  void parameters(int64_t offset, int64_t count, int64_t bytes) const {
    require(offset >= 0 && offset % bytes == 0, "parameters begin in the middle of a number");
    const int64_t size = times({count, bytes});
    require(size <= content.bytes && offset <= content.bytes - size, "it reaches beyond its parameters");
  }

  // Sums of the channels of an image, where somebody asks for them
  void sums(const Step& s, const Image& x) const {
    if (s.sums >= 0) floats(s.sums, x.blocks() * LANES);
  }

  void maybe(int64_t offset, int64_t count) const {
    if (offset != -1) parameters(offset, count, sizeof(float));
  }

  // `scaled` rows have a scale each
  void matrix(const Matrix& m, int64_t count, int64_t scaled) const {
    parameters(m.offset, count, TYPE_BYTES[m.type]);
    maybe(m.scale, scaled);
  }

  // ---- what steps have in common

  static bool covers(const Image& x, const Image& y) {
    return x.blocks() >= y.blocks() && x.height >= y.height && x.width >= y.width;
  }

  static bool vector(const Image& x) { return x.height == 1 && x.width == 1; }

  // A window over an image with a border of this width
  static void window(const Step& s, int64_t border) {
    const auto fits = [&](int64_t size, int64_t kernel, int64_t stride, int64_t pad, int64_t dilation, int64_t out) {
      const int64_t last = (out - 1) * stride - pad + (kernel - 1) * dilation;
      require(kernel >= 1 && pad <= border && last < size + border, "a window reaches beyond its image");
    };
    fits(s.input.height, s.kernel_h, s.stride_h, s.pad_h, s.dilation_h, s.output.height);
    fits(s.input.width, s.kernel_w, s.stride_w, s.pad_w, s.dilation_w, s.output.width);
  }

  static void spline(const Step& s) {
    require(s.splines >= 1 && s.dims >= 1 && s.knots > s.degree, "there is no such spline");
    require(times({s.dims, s.degree + 1}) <= MOST_ACTIVE, "a spline touches too many knots");
  }

  void positions(const Step& s, int64_t coordinates) const {
    require(s.knots > s.degree, "there is no such spline");
    floats(s.basis, times({coordinates, LANES}));
  }

  void more(const Step& s) const {
    if (!s.other.exists()) return;
    image(s.other);
    require(covers(s.other, s.output), "what is added is too small");
  }

  // ---- kinds

  void convolution(const Step& s) {
    image(s.input), image(s.output), more(s);
    window(s, s.input.margin);
    require(s.groups >= 1 && s.input.channels % s.groups == 0 && s.output.channels % s.groups == 0, "groups do not fit");
    const int64_t taps = times({s.kernel_h, s.kernel_w}), blocks = s.output.blocks();
    if (s.kind == DEPTHWISE)
      require(s.groups == s.input.channels && s.groups == s.output.channels && taps <= s.length, "filters do not fit");
    else
      for (int64_t b = 0; b < blocks; b++) {
        const Share seen = seen_channels(s, b);
        require(times({taps, seen.end - seen.begin}) <= s.length, "filters do not fit");
      }
    const int64_t filters = times({blocks, s.length, LANES});
    if (s.mixed >= 0)
      floats(s.mixed, filters);
    else
      parameters(s.weight.offset, filters, sizeof(float));
    maybe(s.bias, blocks * LANES);
    sums(s, s.output);
    work += times({filters, s.output.height, s.output.width});
  }

  void linear(const Step& s) {
    image(s.input), image(s.output);
    require(s.length >= times({s.input.blocks() * LANES, s.input.height, s.input.width}), "rows are too short");
    require(s.output.channels <= s.rows, "rows are too few");
    int64_t rows = s.rows;
    if (s.basis >= 0) {
      spline(s), positions(s, s.dims);
      rows = times({s.dims, s.knots, s.rows});
    }
    matrix(s.weight, times({rows, s.length}), rows);
    maybe(s.bias, s.output.channels);
    work += times({s.output.channels, s.length, s.basis < 0 ? 1 : MOST_ACTIVE});
  }

  void pool(const Step& s) {
    image(s.input), image(s.output), sums(s, s.output);
    require(s.input.blocks() >= s.output.blocks(), "channels do not fit");
    require(s.pad_h <= s.kernel_h && s.pad_w <= s.kernel_w, "padding is wider than the window");
    const auto reach = [](int64_t kernel, int64_t size) { return kernel ? std::min(kernel, size) : size; };
    work += times({s.output.blocks() * LANES, s.output.height, s.output.width, reach(s.kernel_h, s.input.height),
                   reach(s.kernel_w, s.input.width)});
  }

  void subsample(const Step& s) const {
    image(s.input), image(s.output);
    require(
        times({s.output.height - 1, s.stride_h}) < s.input.height && times({s.output.width - 1, s.stride_w}) < s.input.width,
        "it reaches beyond its image");
  }

  void pixelwise(const Step& s) const {
    image(s.input), image(s.output), sums(s, s.output);
    require(covers(s.input, s.output), "its input is too small");
    if (!s.other.exists()) return;
    image(s.other);
    const bool one = s.other.height == 1 && s.other.width == 1 && s.other.blocks() >= s.output.blocks();
    require(one || covers(s.other, s.output), "its other input is too small");
  }

  void channelwise(const Step& s) const {
    if (s.weight.offset != -1) parameters(s.weight.offset, s.output.blocks() * LANES, sizeof(float));
    maybe(s.bias, s.output.blocks() * LANES);
  }

  void norm(const Step& s) const {
    pixelwise(s), channelwise(s);
    require(s.input.channels == s.output.channels && (!s.groups || s.input.channels % s.groups == 0), "groups do not fit");
    require(covers(s.output, s.input) && s.epsilon >= 0 && s.epsilon <= 1, "a norm does not fit");
  }

  void copy(const Step& s) {
    image(s.input), image(s.output);
    require(s.source + s.count <= s.input.channels && s.target + s.count <= s.output.channels, "channels do not fit");
    work += times({s.count, s.output.height, s.output.width});
  }

  void projection(const Step& s) {
    image(s.input), image(s.output);
    const int64_t length = times({s.input.blocks() * LANES, s.input.height, s.input.width});
    const int64_t responses = times({s.output.channels, s.closed ? 2 : 1}), knots = std::max<int64_t>(s.decision_knots, 1);
    require(s.length >= length, "rows are too short");
    require(!s.decision_knots || s.decision_knots > s.decision_degree, "there is no such spline");
    const int64_t rows = s.blocked ? round_up(responses, LANES) : responses;
    require(!s.blocked || (vector(s.input) && !s.closed && !s.decision_knots), "decision parameters do not lie in blocks");
    matrix(s.weight, times({knots, rows, s.length}), times({knots, rows}));
    maybe(s.bias, responses);
    if (s.sums >= 0) floats(s.sums, responses);
    if (s.narrow >= 0) floats(s.narrow, (length + 1) / 2);
    work += times({responses, s.decision_degree + 1, s.length});
    parent(s);
  }

  void parent(const Step& s) const {
    if (!s.other.exists()) return;
    image(s.other);
    if (s.matching == -1)
      require(s.other.channels >= s.output.channels, "positions are too few");
    else
      parameters(s.matching, times({s.output.channels, s.other.channels}), sizeof(float));
  }

  void mix(const Step& s) {
    image(s.output);  // whose rows threads share
    spline(s), positions(s, times({s.splines, s.dims}));
    require(s.length % LANES == 0 && s.groups >= 1, "filters do not fit");
    const int64_t filters = times({s.output.blocks(), s.length, LANES}), knots = knot_rows(s);
    floats(s.mixed, filters);
    if (s.splines == 1 || s.blocked) {
      require(s.rows >= s.output.blocks() * LANES && s.output.channels % s.splines == 0, "filters do not fit");
      require(s.splines == 1 ? !s.based : s.knots == s.degree + 1, "filters of a block touch other knots");
      matrix(s.weight, times({knots, filters}), times({knots, s.rows}));
    } else {
      require(!s.based && s.rows % s.splines == 0 && round_up(s.rows, LANES) == s.output.blocks() * LANES,
              "filters do not fit");
      require(s.rows >= 1, "filters do not fit");
      matrix(s.weight, times({s.rows, knots, s.length}), times({s.rows, knots}));
    }
    work += times({filters, s.dims, s.degree + 1});
  }

  void kind(const Step& s) {
    switch (s.kind) {
      case INPUT:
        return image(s.output), sums(s, s.output);
      case CONV:
      case DEPTHWISE:
        return convolution(s);
      case LINEAR:
        return linear(s);
      case MAXPOOL:
      case AVGPOOL:
        return pool(s);
      case SUM:
        return image(s.input), floats(s.sums, s.input.blocks() * LANES);
      case MEAN:
        return image(s.input), image(s.output), floats(s.sums, s.output.blocks() * LANES);
      case ADD:
      case SUBTRACT:
      case MULTIPLY:
        return pixelwise(s);
      case AFFINE:
        return pixelwise(s), channelwise(s);
      case NORM:
        return norm(s);
      case COPY:
        return copy(s);
      case SUBSAMPLE:
        return subsample(s);
      case PROJECT:
        return projection(s), floats(s.sums, 1);
      case LOCATE:
        return projection(s), positions(s, s.output.channels);
      case MIX:
        return mix(s);
      case TELL:
        image(s.output);
        return require(s.source + s.count <= content.told_count && s.target + s.count <= s.output.channels,
                       "there are not as many conditions");
      case PLACE:
        return image(s.input), positions(s, s.input.channels);
      case OUTPUT:
        return image(s.input);
      default:
        require(false, "there is no such kind");
    }
  }
};

}  // namespace
