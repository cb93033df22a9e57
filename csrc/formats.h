// Formats of quantised weights: how a GGUF file stores a block of one output's inputs, and how a panel holds it.
//
// Source: ggml's block structs and their dequantisation, version 3 of the GGUF format. A weight is scale * code (the
// code less an offset, or looked up) plus, in some formats, a minimum. `group` inputs share scale and minimum. In a
// format that is `nested` these are small integers, and 256 inputs share the factors on them. Where a file stores the
// place of several codes in a codebook, the caller has that. Kinds whose panels lie alike share a format, and
// differ in their meaning.
//
// A panel is kPanel outputs, packed block after block of inputs, in one stream:
//   factors       half [kPanel], of the scales; as bfloat16 in formats whose scales are powers of two
//   least factors half [kPanel], where there is a minimum: of the minimums, or in no nested format themselves
//   scales        int8 [groups, kPanel], where nested
//   minimums      uint8 [groups, kPanel], where nested and there is a minimum; scales and minimums of four bits share
//                 a byte, scales in the low half
//   codes         of 32 inputs after another, in planes of bits
// Codes lie as products take them: a lane of 32 bits has four inputs of one output, a byte each. A plane of nibbles has
// steps 2i and 2i + 1 of four inputs in one lane, one of pairs of bits four steps, one of single bits all eight.
#pragma once

#include "table.h"
#include "vec.h"

namespace parlay {
namespace {

constexpr int kChunk = 32;         // inputs that share an activation's scale
constexpr int kSteps = kChunk / 4;  // of four inputs
constexpr int kWide = 256;         // inputs a nested block
constexpr int kMostGroups = 16;    // a block
constexpr int kLanesBytes = kPanel * 4;  // of a plane: a lane for each output

// What one output's block says, as it is read from a file.
struct Fields {
  uint8_t code[kWide];  // without sign: `offset` is to be taken away, or an index into the table
  half factor, least_factor;
  int8_t scale[kMostGroups];
  uint8_t least[kMostGroups];
  const uint8_t* book;  // codes without their highest bits, entry after entry
};

// What looked-up codes mean: the level of each plus 128, four times over, as registers have them.
struct alignas(64) LevelTable {
  uint8_t of[64];
  constexpr explicit LevelTable(const int8_t (&level)[16]) : of() {
    for (int i = 0; i < 64; ++i) of[i] = (uint8_t)(level[i % 16] + 128);
  }
};

constexpr LevelTable kTable({-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113});
constexpr LevelTable kMicro({0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12});  // E2M1, doubled
// A size of a codebook, and above it whether it is negative.
constexpr LevelTable kThree({8, 25, 43, 0, -8, -25, -43, 0});
constexpr LevelTable kEight({4, 12, 20, 28, 36, 44, 52, 62, -4, -12, -20, -28, -36, -44, -52, -62});
constexpr LevelTable kOdd({1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15});
constexpr LevelTable kMoved({-7, 1, 9, 0, -9, -1, 7, 0});  // one of {-8, 0, 8}; above it, whether 1 is added or taken away

struct Meaning {
  const uint8_t* levels;
  float unit;  // a further factor of nested formats' scales
};

inline Meaning meaning_of(int kind) {
  switch (kind) {
    case 16: case 17: case 22: return {kThree.of, 0.125f};
    case 18: return {kEight.of, 0.25f};
    case 19: case 29: return {kMoved.of, 0.125f};
    case 21: return {kOdd.of, 1};
    case 39: return {kMicro.of, 1};
    default: return {kTable.of, 1};
  }
}

template <int bits_, int group_, int offset_, bool least_, bool nested_, bool looked_up_ = false, bool shared_ = false>
struct Format {
  static constexpr int bits = bits_, group = group_, offset = offset_;
  static constexpr bool least = least_, nested = nested_, looked_up = looked_up_, shared = shared_;
  typedef fp16 Factor;
  static constexpr bool wide = bits == 8 || looked_up;  // codes, as products take them, fill a byte
  static constexpr int block = nested ? kWide : kChunk, groups = block / group, chunks = block / kChunk;
  // Bytes of a panel's block.
  static constexpr int factors = kPanel * (int)sizeof(half) * (least ? 2 : 1);
  static constexpr int scales = nested ? groups * kPanel : 0, minimums = least && !shared ? scales : 0;
  static constexpr int head = factors + scales + minimums;
  static constexpr int bytes_plane = bits == 8 ? kSteps * kLanesBytes : 0;
  static constexpr int nibbles = bits >= 4 && bits <= 6 ? kSteps / 2 * kLanesBytes : 0;
  static constexpr int pairs = bits == 2 || bits == 3 || bits == 6 ? kSteps / 4 * kLanesBytes : 0;
  static constexpr int singles = bits == 3 || bits == 5 ? kLanesBytes : 0;
  static constexpr int chunk = bytes_plane + nibbles + pairs + singles;
  static constexpr int bytes = head + chunks * chunk;
};

PARLAY_INLINE half half_at(const uint8_t* from) {
  half h;
  memcpy(&h, from, 2);
  return h;
}

// Codes from nibbles: low ones first, then high ones.
template <int count>
PARLAY_INLINE void split(const uint8_t* from, uint8_t* code) {
  for (int i = 0; i < count; i += 8) {
    uint64_t both;
    memcpy(&both, from + i, 8);
    const uint64_t low = both & 0x0f0f0f0f0f0f0f0f, high = both >> 4 & 0x0f0f0f0f0f0f0f0f;
    memcpy(code + i, &low, 8);
    memcpy(code + count + i, &high, 8);
  }
}

struct Q4_0 : Format<4, 32, 8, false, false> {
  static constexpr int stored = 18;
  static void read(const uint8_t* b, Fields& f) {
    f.factor = half_at(b);
    split<16>(b + 2, f.code);
  }
};

struct Q4_1 : Format<4, 32, 0, true, false> {
  static constexpr int stored = 20;
  static void read(const uint8_t* b, Fields& f) {
    f.factor = half_at(b), f.least_factor = half_at(b + 2);
    split<16>(b + 4, f.code);
  }
};

PARLAY_INLINE void add_fifth_bits(const uint8_t* from, uint8_t* code) {
  uint32_t bits;
  memcpy(&bits, from, 4);
  for (int i = 0; i < 32; ++i) code[i] |= (bits >> i & 1) << 4;
}

struct Q5_0 : Format<5, 32, 16, false, false> {
  static constexpr int stored = 22;
  static void read(const uint8_t* b, Fields& f) {
    f.factor = half_at(b);
    split<16>(b + 6, f.code);
    add_fifth_bits(b + 2, f.code);
  }
};

struct Q5_1 : Format<5, 32, 0, true, false> {
  static constexpr int stored = 24;
  static void read(const uint8_t* b, Fields& f) {
    f.factor = half_at(b), f.least_factor = half_at(b + 2);
    split<16>(b + 8, f.code);
    add_fifth_bits(b + 4, f.code);
  }
};

struct Q8_0 : Format<8, 32, 128, false, false> {
  static constexpr int stored = 34;
  static void read(const uint8_t* b, Fields& f) {
    f.factor = half_at(b);
    for (int i = 0; i < 32; ++i) f.code[i] = b[2 + i] ^ 0x80;
  }
};

// Codes of 256 inputs from pairs of bits: of every 32 bytes the lowest ones first.
PARLAY_INLINE void split_pairs(const uint8_t* from, uint8_t* code) {
  for (int i = 0; i < kWide; i += 32)
    for (int j = 0; j < 32; ++j) code[i + j] = from[i / 128 * 32 + j] >> i % 128 / 32 * 2 & 3;
}

struct Q2_K : Format<2, 16, 0, true, true, false, true> {
  static constexpr int stored = 84;
  static void read(const uint8_t* b, Fields& f) {
    f.factor = half_at(b + 80), f.least_factor = half_at(b + 82);
    for (int g = 0; g < groups; ++g) f.scale[g] = b[g] & 15, f.least[g] = b[g] >> 4;
    split_pairs(b + 16, f.code);
  }
};

struct Q3_K : Format<3, 16, 4, false, true> {
  static constexpr int stored = 110;
  static void read(const uint8_t* b, Fields& f) {
    const uint8_t *high = b, *low = b + 32, *scales = b + 96;
    f.factor = half_at(b + 108);
    for (int g = 0; g < groups; ++g) {
      const int four = g < 8 ? scales[g] & 15 : scales[g - 8] >> 4, two = scales[8 + g % 4] >> g / 4 * 2 & 3;
      f.scale[g] = (int8_t)((four | two << 4) - 32);
    }
    for (int i = 0; i < block; i += 32)
      for (int j = 0; j < 32; ++j)
        f.code[i + j] = (low[i / 128 * 32 + j] >> i % 128 / 32 * 2 & 3) | (high[j] >> i / 32 & 1) << 2;
  }
};

// Eight scales and minimums of six bits in twelve bytes.
PARLAY_INLINE void split_sixes(const uint8_t* from, Fields& f) {
  for (int g = 0; g < 8; ++g)
    if (g < 4)
      f.scale[g] = from[g] & 63, f.least[g] = from[g + 4] & 63;
    else
      f.scale[g] = (from[g + 4] & 15) | from[g - 4] >> 6 << 4, f.least[g] = from[g + 4] >> 4 | from[g] >> 6 << 4;
}

struct Q4_K : Format<4, 32, 0, true, true> {
  static constexpr int stored = 144;
  static void read(const uint8_t* b, Fields& f) {
    f.factor = half_at(b), f.least_factor = half_at(b + 2);
    split_sixes(b + 4, f);
    for (int i = 0; i < block; i += 64) split<32>(b + 16 + i / 2, f.code + i);
  }
};

struct Q5_K : Format<5, 32, 0, true, true> {
  static constexpr int stored = 176;
  static void read(const uint8_t* b, Fields& f) {
    f.factor = half_at(b), f.least_factor = half_at(b + 2);
    split_sixes(b + 4, f);
    for (int i = 0; i < block; i += 64) split<32>(b + 48 + i / 2, f.code + i);
    for (int i = 0; i < block; i += 32)
      for (int j = 0; j < 32; ++j) f.code[i + j] |= (b[16 + j] >> i / 32 & 1) << 4;
  }
};

struct Q6_K : Format<6, 16, 32, false, true> {
  static constexpr int stored = 210;
  static void read(const uint8_t* b, Fields& f) {
    const uint8_t *low = b, *high = b + 128;
    f.factor = half_at(b + 208);
    memcpy(f.scale, b + 192, groups);
    for (int i = 0; i < block; i += 32) {
      const int part = i / 128, quarter = i % 128 / 32;
      const uint8_t *fours = low + part * 64 + i % 64, *twos = high + part * 32;
      for (int j = 0; j < 32; ++j) f.code[i + j] = (fours[j] >> quarter / 2 * 4 & 15) | (twos[j] >> quarter * 2 & 3) << 4;
    }
  }
};

struct IQ4_NL : Format<4, 32, 128, false, false, true> {
  static constexpr int stored = 18;
  static void read(const uint8_t* b, Fields& f) {
    f.factor = half_at(b);
    split<16>(b + 2, f.code);
  }
};

struct IQ4_XS : Format<4, 32, 128, false, true, true> {
  static constexpr int stored = 136;
  static void read(const uint8_t* b, Fields& f) {
    f.factor = half_at(b);
    for (int g = 0; g < groups; ++g)
      f.scale[g] = (int8_t)(((b[4 + g / 2] >> g % 2 * 4 & 15) | (half_at(b + 2) >> g * 2 & 3) << 4) - 32);
    for (int g = 0; g < groups; ++g) split<16>(b + 8 + g * 16, f.code + g * 32);
  }
};

struct MXFP4 : Format<4, 32, 128, false, false, true> {
  typedef bf16 Factor;
  static constexpr int stored = 17;
  static void read(const uint8_t* b, Fields& f) {
    // 2^(b - 128), since levels are doubled; below the least normal number one bit of the fraction says it.
    f.factor = (half)(b[0] < 2 ? 0x20 << b[0] : (b[0] - 1) << 7);
    split<16>(b + 1, f.code);
  }
};

// Codes of `count` inputs: an entry of a codebook, with a bit of `above` upon each.
template <int count, int place>
PARLAY_INLINE void take(const uint8_t* book, int entry, int above, uint8_t* code) {
  for (int i = 0; i < count; ++i) code[i] = (uint8_t)(book[entry * count + i] | (above >> i & 1) << place);
}

// Signs of eight inputs, of which seven are stored: an even number is negative.
PARLAY_INLINE int signs_of(uint32_t seven) { return (int)(seven | (uint32_t)__builtin_parity(seven) << 7); }

PARLAY_INLINE int nibble(const uint8_t* from, int i) { return from[i / 2] >> i % 2 * 4 & 15; }

struct IQ2_XXS : Format<3, 32, 128, false, true, true> {
  static constexpr int stored = 66;
  static void read(const uint8_t* b, Fields& f) {
    f.factor = half_at(b);
    for (int g = 0; g < groups; ++g) {
      uint32_t rest;  // four times seven signs, and four bits of the scale
      memcpy(&rest, b + 6 + g * 8, 4);
      f.scale[g] = (int8_t)((rest >> 28) * 2 + 1);
      for (int k = 0; k < 4; ++k) take<8, 2>(f.book, b[2 + g * 8 + k], signs_of(rest >> k * 7 & 127), f.code + g * 32 + k * 8);
    }
  }
};

struct IQ2_XS : Format<3, 16, 128, false, true, true> {
  static constexpr int stored = 74;
  static void read(const uint8_t* b, Fields& f) {
    f.factor = half_at(b);
    for (int g = 0; g < groups; ++g) f.scale[g] = (int8_t)(nibble(b + 66, g) * 2 + 1);
    for (int k = 0; k < block / 8; ++k) {
      const uint16_t both = half_at(b + 2 + k * 2);
      take<8, 2>(f.book, both & 511, signs_of(both >> 9), f.code + k * 8);
    }
  }
};

struct IQ2_S : Format<3, 16, 128, false, true, true> {
  static constexpr int stored = 82;
  static void read(const uint8_t* b, Fields& f) {
    f.factor = half_at(b);
    for (int g = 0; g < groups; ++g) f.scale[g] = (int8_t)(nibble(b + 74, g) * 2 + 1);
    for (int k = 0; k < block / 8; ++k)
      take<8, 2>(f.book, b[2 + k] | (b[66 + k / 4] >> k % 4 * 2 & 3) << 8, b[34 + k], f.code + k * 8);
  }
};

struct IQ3_XXS : Format<4, 32, 128, false, true, true> {
  static constexpr int stored = 98;
  static void read(const uint8_t* b, Fields& f) {
    f.factor = half_at(b);
    for (int g = 0; g < groups; ++g) {
      uint32_t rest;  // as above
      memcpy(&rest, b + 66 + g * 4, 4);
      f.scale[g] = (int8_t)((rest >> 28) * 2 + 1);
      for (int k = 0; k < 8; ++k)
        take<4, 3>(f.book, b[2 + g * 8 + k], signs_of(rest >> k / 2 * 7 & 127) >> k % 2 * 4, f.code + g * 32 + k * 4);
    }
  }
};

struct IQ3_S : Format<4, 32, 128, false, true, true> {
  static constexpr int stored = 110;
  static void read(const uint8_t* b, Fields& f) {
    f.factor = half_at(b);
    for (int g = 0; g < groups; ++g) f.scale[g] = (int8_t)(nibble(b + 106, g) * 2 + 1);
    for (int k = 0; k < block / 4; ++k)
      take<4, 3>(f.book, b[2 + k] | (b[66 + k / 8] >> k % 8 & 1) << 8, nibble(b + 74, k), f.code + k * 4);
  }
};

struct IQ1_S : Format<3, 32, 128, false, true, true> {
  static constexpr int stored = 50;
  static void read(const uint8_t* b, Fields& f) {
    f.factor = half_at(b);
    for (int g = 0; g < groups; ++g) {
      const uint16_t rest = half_at(b + 34 + g * 2);
      f.scale[g] = (int8_t)((rest >> 12 & 7) * 2 + 1);
      for (int k = 0; k < 4; ++k)
        take<8, 2>(f.book, b[2 + g * 4 + k] | (rest >> k * 3 & 7) << 8, rest >> 15 ? 255 : 0, f.code + g * 32 + k * 8);
    }
  }
};

struct IQ1_M : Format<3, 16, 128, false, true, true> {
  static constexpr int stored = 56;
  static void read(const uint8_t* b, Fields& f) {
    f.factor = 0;  // four bits of it are above each four scales
    for (int w = 0; w < 4; ++w) f.factor |= (half)(half_at(b + 48 + w * 2) >> 12 << w * 4);
    for (int g = 0; g < groups; ++g) f.scale[g] = (int8_t)((half_at(b + 48 + g / 4 * 2) >> g % 4 * 3 & 7) * 2 + 1);
    for (int k = 0; k < block / 8; ++k) {
      const int high = nibble(b + 32, k);
      take<8, 2>(f.book, b[k] | (high & 7) << 8, high >> 3 ? 255 : 0, f.code + k * 8);
    }
  }
};

struct TQ1_0 : Format<2, 32, 1, false, true> {
  static constexpr int stored = 54;
  // Five or four digits to the base 3 of each byte, as a fraction of 256; the first ones of all bytes come first.
  static void split_threes(const uint8_t* from, int count, int digits, uint8_t* code) {
    for (int digit = 0, power = 1; digit < digits; ++digit, power *= 3)
      for (int i = 0; i < count; ++i) code[digit * count + i] = (uint8_t)((uint8_t)(from[i] * power) * 3 >> 8);
  }
  static void read(const uint8_t* b, Fields& f) {
    f.factor = half_at(b + 52);
    for (int g = 0; g < groups; ++g) f.scale[g] = 1;
    split_threes(b, 32, 5, f.code), split_threes(b + 32, 16, 5, f.code + 160), split_threes(b + 48, 4, 4, f.code + 240);
  }
};

struct TQ2_0 : Format<2, 32, 1, false, true> {
  static constexpr int stored = 66;
  static void read(const uint8_t* b, Fields& f) {
    f.factor = half_at(b + 64);
    for (int g = 0; g < groups; ++g) f.scale[g] = 1;
    split_pairs(b, f.code);
  }
};

// Calls f with an object of the format of a kind's panels. Kinds have the numbers that GGUF files give them.
template <class F>
PARLAY_INLINE void with_format(int kind, F f) {
  switch (kind) {
    case 2: return f(Q4_0());
    case 3: return f(Q4_1());
    case 6: return f(Q5_0());
    case 7: return f(Q5_1());
    case 8: return f(Q8_0());
    case 10: return f(Q2_K());
    case 11: return f(Q3_K());
    case 12: return f(Q4_K());
    case 13: return f(Q5_K());
    case 14: return f(Q6_K());
    case 16: case 19: return f(IQ2_XXS());
    case 17: case 22: case 29: return f(IQ2_S());
    case 20: return f(IQ4_NL());
    case 18: case 21: case 23: return f(IQ4_XS());
    case 34: case 35: return f(TQ2_0());
    case 39: return f(MXFP4());
  }
}

// The same with the format of its blocks in files.
template <class F>
PARLAY_INLINE void with_stored(int kind, F f) {
  switch (kind) {
    case 17: return f(IQ2_XS());
    case 18: return f(IQ3_XXS());
    case 19: return f(IQ1_S());
    case 21: return f(IQ3_S());
    case 29: return f(IQ1_M());
    case 34: return f(TQ1_0());
    default: return with_format(kind, f);
  }
}

// The byte of a plane where input i of a chunk has its code, for output `lane`.
PARLAY_INLINE int plane_byte(int i, int steps_a_lane, int lane) { return i / 4 / steps_a_lane * kLanesBytes + lane * 4 + i % 4; }

// Adds up some bits of the codes of `steps` steps, four inputs each, to the lanes of a plane for output `lane`.
template <int steps, uint32_t mask>
PARLAY_INLINE void put_plane(uint8_t* plane, int lane, const uint32_t* code, int shift) {
  for (int first = 0; first < kSteps; first += steps, plane += kLanesBytes) {
    uint32_t word = 0;
    for (int s = 0; s < steps; ++s) word |= (code[first + s] >> shift & mask) << s * (8 / steps);
    memcpy(plane + lane * 4, &word, sizeof word);
  }
}

// Writes a chunk's codes for output `lane`.
template <class F>
PARLAY_INLINE void put_codes(uint8_t* chunk, int lane, const uint8_t* codes) {
  uint32_t code[kSteps];
  memcpy(code, codes, sizeof code);
  if constexpr (F::bits == 8) put_plane<1, 0xffffffff>(chunk, lane, code, 0);
  if constexpr (F::nibbles > 0) put_plane<2, 0x0f0f0f0f>(chunk, lane, code, 0);
  constexpr int shift = F::nibbles > 0 ? 4 : 0;
  if constexpr (F::pairs > 0) put_plane<4, 0x03030303>(chunk + F::nibbles, lane, code, shift);
  if constexpr (F::singles > 0)
    put_plane<8, 0x01010101>(chunk + F::nibbles + F::pairs, lane, code, F::pairs > 0 ? shift + 2 : shift);
}

template <class F>
int get_code(const uint8_t* chunk, int i, int lane) {
  const int step = i / 4;
  if constexpr (F::bits == 8) return chunk[plane_byte(i, 1, lane)];
  int code = 0, shift = 0;
  if constexpr (F::nibbles > 0) {
    code = chunk[plane_byte(i, 2, lane)] >> step % 2 * 4 & 15;
    shift = 4;
  }
  if constexpr (F::pairs > 0) {
    code |= (chunk[F::nibbles + plane_byte(i, 4, lane)] >> step % 4 * 2 & 3) << shift;
    shift += 2;
  }
  if constexpr (F::singles > 0) code |= (chunk[F::nibbles + F::pairs + plane_byte(i, 8, lane)] >> step & 1) << shift;
  return code;
}

// Bytes of a panel.
int64_t packed_bytes(int64_t inputs, int kind) {
  int64_t bytes = 0;
  with_format(kind, [&](auto format) { bytes = inputs / decltype(format)::block * decltype(format)::bytes; });
  return bytes;
}

// Panels begin..end of a weight as a file stores it; outputs that fill up the last one are zero.
void pack(const PackArgs& a, int64_t begin, int64_t end) {
  with_stored(a.kind, [&](auto format) {
    typedef decltype(format) F;
    const int64_t blocks = a.inputs / F::block;
    Fields f;
    f.book = (const uint8_t*)a.book;
    for (int64_t panel = begin; panel < end; ++panel) {
      uint8_t* to = (uint8_t*)a.out + panel * blocks * F::bytes;
      memset(to, 0, blocks * F::bytes);
      const int64_t left = a.outputs - panel * kPanel, lanes = left < kPanel ? left : kPanel;
      const uint8_t* first = (const uint8_t*)a.stored + panel * kPanel * blocks * F::stored;
      for (int64_t block = 0; block < blocks; ++block) {
        for (int64_t lane = 0; lane < lanes; ++lane) {
          F::read(first + (lane * blocks + block) * F::stored, f);
          uint8_t* at = to + block * F::bytes;
          memcpy(at + lane * sizeof(half), &f.factor, sizeof(half));
          if constexpr (F::least) memcpy(at + (kPanel + lane) * sizeof(half), &f.least_factor, sizeof(half));
          if constexpr (F::nested)
            for (int g = 0; g < F::groups; ++g) {
              uint8_t* scale = at + F::factors + g * kPanel + lane;
              *scale = (uint8_t)f.scale[g];
              if constexpr (F::shared)
                *scale |= f.least[g] << 4;
              else if constexpr (F::least)
                scale[F::scales] = f.least[g];
            }
          for (int chunk = 0; chunk < F::chunks; ++chunk)
            put_codes<F>(at + F::head + chunk * F::chunk, (int)lane, f.code + chunk * kChunk);
        }
      }
    }
  });
}

// Rows tokens[begin..end] of a packed weight, as numbers.
template <class F, class T>
void unpack_rows(const UnpackArgs& a, int64_t begin, int64_t end) {
  const int64_t blocks = a.inputs / F::block;
  const Meaning meaning = meaning_of(a.kind);
  for (int64_t row = begin; row < end; ++row) {
    const int64_t output = a.tokens[row];
    const int lane = (int)(output % kPanel);
    T* out = (T*)a.out + row * a.inputs;
    for (int64_t block = 0; block < blocks; ++block) {
      const uint8_t* at = (const uint8_t*)a.weight + (output / kPanel * blocks + block) * F::bytes;
      const float factor = to_float(typename F::Factor{half_at(at + lane * sizeof(half))}) * meaning.unit;
      const float least_factor = F::least ? half_to_float(half_at(at + (kPanel + lane) * sizeof(half))) : 0;
      for (int64_t chunk = 0; chunk < F::chunks; ++chunk) {
        float value[kChunk];
        for (int i = 0; i < kChunk; ++i) {
          const int64_t group = (chunk * kChunk + i) / F::group;
          float scale = factor, least = least_factor;
          if constexpr (F::nested) {
            const uint8_t* small = at + F::factors + group * kPanel + lane;
            scale *= F::shared ? (float)(*small & 15) : (float)(int8_t)*small;
            if constexpr (F::least) least *= -(float)(F::shared ? *small >> 4 : small[F::scales]);
          }
          const int code = get_code<F>(at + F::head + chunk * F::chunk, i, lane);
          const int level = F::looked_up ? meaning.levels[code & 15] - 128 : code - F::offset;
          value[i] = scale * (float)level;
          if constexpr (F::least) value[i] += least;
        }
        for (int i = 0; i < kChunk; i += kLanes) store(out + block * F::block + chunk * kChunk + i, load(value + i));
      }
    }
  }
}

template <class T>
void unpack_halves(const UnpackArgs& a, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const half* at = (const half*)a.weight + a.tokens[row] / kPanel * kPanel * a.inputs + a.tokens[row] % kPanel;
    T* out = (T*)a.out + row * a.inputs;
    PARLAY_ROW(first, some, a.inputs) {
      float value[kLanes] = {};
      for (int64_t i = 0; i < some; ++i) value[i] = half_to_float(at[(first + i) * kPanel]);
      store_at(out, load(value), first, some);
    }
  }
}

void unpack(const UnpackArgs& a, int64_t begin, int64_t end) {
  if (a.kind == kF16) return a.bf16 ? unpack_halves<bf16>(a, begin, end) : unpack_halves<float>(a, begin, end);
  with_format(a.kind, [&](auto format) {
    typedef decltype(format) F;
    a.bf16 ? unpack_rows<F, bf16>(a, begin, end) : unpack_rows<F, float>(a, begin, end);
  });
}

}  // namespace
}  // namespace parlay
