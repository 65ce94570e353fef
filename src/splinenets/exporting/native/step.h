// What the engine executes: steps, and how they lie in memory. The same fields in the same order in program.py.
#pragma once

#include "splines.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <type_traits>

namespace {

constexpr int LANES = 16;  // channels in a block

// Where a value lies, as the program describes it; offsets and strides in floats. Images are stored in blocks of 16
// channels, (blocks, height, width, 16), with a margin of zeros as wide as the widest padding that a convolution wants, so
// that no inner loop looks at borders. Small values are computed by every thread for itself (`own`), because waiting for
// each other would take longer.
struct Image {
  int64_t offset, channels, height, width, margin, own;

  int64_t blocks() const { return (channels + LANES - 1) / LANES; }
  int64_t row() const { return (width + 2 * margin) * LANES; }
  int64_t block() const { return (height + 2 * margin) * row(); }
  int64_t start() const { return offset + margin * row() + margin * LANES; }
  int64_t channel(int64_t c) const { return c / LANES * block() + c % LANES; }  // of the first pixel, from the start
  int64_t units() const { return blocks() * height; }                           // rows that threads share
  bool exists() const { return offset >= 0; }
};

// Parameters as they are stored: (rows, length) of a type, with a scale for each row where they are whole numbers.
struct Matrix {
  int64_t type, offset, scale;  // bytes; a scale of -1: none
};

#define KINDS                                                                                                          \
  INPUT, CONV, LINEAR, MAXPOOL, SUM, MEAN, ADD, SUBSAMPLE, PROJECT, LOCATE, MIX, OUTPUT, DEPTHWISE, AVGPOOL, SUBTRACT, \
      MULTIPLY, AFFINE, NORM, COPY, TELL, PLACE
enum Kind : int64_t { KINDS, KIND_COUNT };

#define ACTIVATIONS NONE, RELU, RELU6, LEAKY_RELU, SIGMOID, SILU, HARD_SIGMOID, HARD_SWISH, GELU, GELU_TANH, TANH
enum Activation : int64_t { ACTIVATIONS, ACTIVATION_COUNT };

enum Type : int64_t { FLOAT32, BFLOAT16, INT8, TYPE_COUNT };

constexpr int64_t TYPE_BYTES[] = {4, 2, 1};

// Every thread does these alone, into memory of its own, and nobody waits.
inline bool everyone(int64_t kind) { return kind == MEAN || kind == LOCATE || kind == MIX || kind == TELL || kind == PLACE; }

// One step. All steps have the same fields, of which each uses some: the program is a plain array of 64-bit numbers.
struct Step {
  int64_t kind;
  Image input, output, other;  // `other`: what is added, or the parent's positions; its offset is -1 where there is none
  int64_t activation;
  int64_t kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
  int64_t groups;     // of a convolution or of a norm, which is taken of each pixel by itself if there are none
  int64_t inclusive;  // whether averages count pixels beyond the border
  Matrix weight;      // filters, knots, decision parameters or factors
  int64_t sums;       // where every thread's part of the sum of each channel, or of projections, lies; -1: nobody asks
  int64_t mixed;      // where in the arena filters of this sample lie; -1: they are constant
  int64_t narrow;     // where in the arena features of 16 bits lie, for whole decision parameters; -1: they stay floats
  int64_t bias;       // bytes; -1: none
  int64_t basis;      // where in the arena the active knots and their weights lie; -1: there is no spline
  int64_t splines, dims, knots, degree, rows;  // rows: of one knot, in `weight`
  int64_t length;                              // of a row
  int64_t matching, bounded, closed, decision_knots, decision_degree;
  int64_t kept;                   // whether it can be left out where the network is told the same as before
  int64_t blocked;                // whether knots of several splines, or decision parameters, lie as filters do
  int64_t based;                  // whether the dims' first knots are one row, their mean, and others differ from them
  int64_t source, target, count;  // of channels that are copied: from where, to where, how many
  double diffusion, slope, epsilon;
};

constexpr int MOST_ACTIVE = 64;  // knots that a spline touches: more than any spec asks for
constexpr int MOST_DEGREE = 8;

struct Share {
  int64_t begin, end;
};

// The channels that the filters of a block look at: those of all groups that have a filter in it.
inline Share seen_channels(const Step& s, int64_t block) {
  const int64_t filters = s.output.channels / s.groups, channels = s.input.channels / s.groups;
  const int64_t last = std::min((block + 1) * LANES, s.output.channels) - 1;
  return {block * LANES / filters * channels, (last / filters + 1) * channels};
}

// The rows of knots that each filter has
inline int64_t knot_rows(const Step& s) { return s.based ? 1 + s.dims * (s.knots - 1) : s.dims * s.knots; }

// The layout of a step as the program must have it, a line for each field: its name, where it begins, its type and size
#define TEXT_OF(...) #__VA_ARGS__
#define TEXT(...) TEXT_OF(__VA_ARGS__)
#define FIELD(name) describe<decltype(Step{}.name)>(#name, offsetof(Step, name))
#define IMAGE(name) \
  FIELD(name.offset) + FIELD(name.channels) + FIELD(name.height) + FIELD(name.width) + FIELD(name.margin) + FIELD(name.own)

template <class T>
std::string describe(const char* name, size_t offset) {
  const char* type = std::is_floating_point_v<T> ? "f" : "i";
  return std::string(name) + " " + std::to_string(offset) + " " + type + std::to_string(sizeof(T)) + "\n";
}

inline std::string layout() {
  return FIELD(kind) + IMAGE(input) + IMAGE(output) + IMAGE(other) + FIELD(activation) + FIELD(kernel_h) + FIELD(kernel_w) +
         FIELD(stride_h) + FIELD(stride_w) + FIELD(pad_h) + FIELD(pad_w) + FIELD(dilation_h) + FIELD(dilation_w) +
         FIELD(groups) + FIELD(inclusive) + FIELD(weight.type) + FIELD(weight.offset) + FIELD(weight.scale) + FIELD(sums) +
         FIELD(mixed) + FIELD(narrow) + FIELD(bias) + FIELD(basis) + FIELD(splines) + FIELD(dims) + FIELD(knots) +
         FIELD(degree) + FIELD(rows) + FIELD(length) + FIELD(matching) + FIELD(bounded) + FIELD(closed) +
         FIELD(decision_knots) + FIELD(decision_degree) + FIELD(kept) + FIELD(blocked) + FIELD(based) + FIELD(source) +
         FIELD(target) + FIELD(count) + FIELD(diffusion) + FIELD(slope) + FIELD(epsilon) + "end " +
         std::to_string(sizeof(Step)) + "\nlanes " + std::to_string(LANES) + "\nkinds " + TEXT(KINDS) + "\nactivations " +
         TEXT(ACTIVATIONS) + "\n";
}

}  // namespace
