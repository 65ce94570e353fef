// A .native file: its first line, the SHA-256 of the rest, a header of eight numbers, and then conditions, steps, metadata
// and parameters, each at a multiple of 64 bytes. The same in file.py.
#pragma once

#include "check.h"

#include <cstdlib>
#include <memory>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace {

constexpr char FIRST_LINE[] = "splinenets native 2\n";
constexpr size_t DIGEST_AT = sizeof FIRST_LINE - 1, BODY_AT = DIGEST_AT + 32, HEADER_AT = 64, PARTS_AT = 128;

class Sha256 {
 public:
  // The digest of some bytes, 32 bytes
  static void digest(const unsigned char* bytes, size_t length, unsigned char* to) {
    uint32_t state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    size_t done = 0;
    for (; length - done >= 64; done += 64) mix(state, bytes + done);
    unsigned char rest[128] = {};
    const size_t left = length - done, size = left < 56 ? 64 : 128;
    if (left) std::memcpy(rest, bytes + done, left);
    rest[left] = 0x80;
    for (int i = 0; i < 8; i++) rest[size - 1 - i] = (unsigned char)(uint64_t(length) * 8 >> 8 * i);
    for (size_t i = 0; i < size; i += 64) mix(state, rest + i);
    for (int i = 0; i < 32; i++) to[i] = (unsigned char)(state[i / 4] >> (24 - i % 4 * 8));
  }

 private:
  static uint32_t turn(uint32_t x, int by) { return x >> by | x << (32 - by); }

  static void mix(uint32_t* state, const unsigned char* block) {
    static constexpr uint32_t constants[64] = {
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
        0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
        0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
        0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
        0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
        0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
        0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
        0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
    uint32_t w[64], v[8];
    for (int i = 0; i < 16; i++)
      w[i] = uint32_t(block[4 * i]) << 24 | uint32_t(block[4 * i + 1]) << 16 | uint32_t(block[4 * i + 2]) << 8 |
             block[4 * i + 3];
    for (int i = 16; i < 64; i++)
      w[i] = w[i - 16] + w[i - 7] + (turn(w[i - 15], 7) ^ turn(w[i - 15], 18) ^ w[i - 15] >> 3) +
             (turn(w[i - 2], 17) ^ turn(w[i - 2], 19) ^ w[i - 2] >> 10);
    std::memcpy(v, state, sizeof v);
    for (int i = 0; i < 64; i++) {
      const uint32_t one =
          v[7] + (turn(v[4], 6) ^ turn(v[4], 11) ^ turn(v[4], 25)) + ((v[4] & v[5]) ^ (~v[4] & v[6])) + constants[i] + w[i];
      const uint32_t two =
          (turn(v[0], 2) ^ turn(v[0], 13) ^ turn(v[0], 22)) + ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
      for (int j = 7; j > 0; j--) v[j] = v[j - 1];
      v[4] += one, v[0] = one + two;
    }
    for (int i = 0; i < 8; i++) state[i] += v[i];
  }
};

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

typedef std::unique_ptr<char, Free> Memory;

constexpr int64_t LARGE_PAGE = int64_t(1) << 21;

// Memory at a multiple of 64 bytes, all zeros; much of it lies in large pages, where the system has them: decision
// parameters are read from one end to the other, and small pages make that slow.
inline Memory zeros(int64_t bytes) {
  const int64_t alignment = bytes < LARGE_PAGE ? 64 : LARGE_PAGE;
  const int64_t size = round_up(std::max<int64_t>(bytes, 1), alignment);
  Memory memory(static_cast<char*>(std::aligned_alloc(size_t(alignment), size_t(size))));
  if (!memory) throw std::bad_alloc();
#if defined(__linux__)
  if (alignment == LARGE_PAGE) madvise(memory.get(), size_t(size), MADV_HUGEPAGE);
#endif
  std::memset(memory.get(), 0, size_t(size));
  return memory;
}

// A file's content, copied and checked.
class File {
 public:
  Content content;
  std::string metadata;

  File(const unsigned char* bytes, size_t length) {
    require(length >= PARTS_AT && !std::memcmp(bytes, FIRST_LINE, DIGEST_AT), "its first line is not known");
    unsigned char digest[32];
    Sha256::digest(bytes + BODY_AT, length - BODY_AT, digest);
    require(!std::memcmp(digest, bytes + DIGEST_AT, sizeof digest),
            "its content does not have the SHA-256 that stands before it");
    std::memcpy(header, bytes + HEADER_AT, sizeof header);
    require(header[STEP_SIZE] == sizeof(Step), "its steps have another size");
    at = PARTS_AT;
    cut(told, bytes, length, header[TOLD]);
    cut(steps, bytes, length, header[STEPS]);
    const char* text = part(bytes, length, header[METADATA]);
    metadata.assign(text, size_t(header[METADATA]));
    const char* numbers = part(bytes, length, header[PARAMETERS]);
    parameters = zeros(header[PARAMETERS]);
    std::memcpy(parameters.get(), numbers, size_t(header[PARAMETERS]));
    content = {steps.data(),  int64_t(steps.size()), parameters.get(),    header[PARAMETERS],
               header[ARENA], told.data(),           int64_t(told.size())};
    Checker(content).program();
  }

 private:
  enum { STEP_SIZE, TOLD, STEPS, METADATA, PARAMETERS, ARENA, COUNT = 8 };
  int64_t header[COUNT];
  size_t at;
  std::vector<Told> told;
  std::vector<Step> steps;
  Memory parameters;

  const char* part(const unsigned char* bytes, size_t length, int64_t size) {
    require(at <= length && size >= 0 && uint64_t(size) <= length - at, "it ends too early");
    const unsigned char* begin = bytes + at;
    at += size_t(round_up(size, 64));
    return reinterpret_cast<const char*>(begin);
  }

  template <class T>
  void cut(std::vector<T>& to, const unsigned char* bytes, size_t length, int64_t count) {
    require(count >= 0 && count <= int64_t(length / sizeof(T)), "it ends too early");
    const char* begin = part(bytes, length, count * int64_t(sizeof(T)));
    to.resize(size_t(count));
    if (count) std::memcpy(to.data(), begin, size_t(count) * sizeof(T));
  }
};

}  // namespace
