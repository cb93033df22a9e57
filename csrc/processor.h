// What a processor has, and its system lets programs use. Compilers answer this with their own libraries, which not
// every toolchain brings.
#pragma once

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__linux__)
#include <sys/auxv.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>

#include <string>
#endif

namespace parlay {

#if defined(__x86_64__)
// By leaves 1 and 7 of CPUID (Intel's manual, volume 1, 13.3 and 14.3).
struct Processor {
  bool avx2 = false;        // with FMA and conversions of float16
  bool avx512 = false;      // F, BW, DQ and VL
  bool avx512vnni = false;  // these two as well
  bool avx512bf16 = false;
  bool tiles = false;       // AMX with bf16: a process has to ask for its registers

  Processor() {
    constexpr unsigned kFma = 1u << 12, kSaves = 1u << 27, kF16c = 1u << 29;                         // ecx of leaf 1
    constexpr unsigned kAvx2 = 1u << 5, kF = 1u << 16, kDq = 1u << 17, kBw = 1u << 30, kVl = 1u << 31;  // ebx of leaf 7
    constexpr unsigned kVnni = 1u << 11, kTilesBf16 = 1u << 22, kTiles = 1u << 24, kBf16 = 1u << 5;
    constexpr unsigned kYmm = 0x6, kZmm = 0xe6;  // registers that the system saves
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !has(c, kSaves | kFma | kF16c)) return;
    unsigned saved, high;
    __asm__("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
    if (!has(saved, kYmm) || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return;
    avx2 = has(b, kAvx2);
    tiles = has(d, kTilesBf16 | kTiles);
    avx512 = avx2 && has(saved, kZmm) && has(b, kF | kDq | kBw | kVl);
    avx512vnni = avx512 && has(c, kVnni);
    avx512bf16 = avx512 && a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d) && has(a, kBf16);
  }

 private:
  static bool has(unsigned word, unsigned bits) { return (word & bits) == bits; }
};
#elif defined(__aarch64__)
// What of NEON's extensions there is, as Linux (arch/arm64, elf_hwcaps) or macOS ("Determining Instruction Set
// Characteristics") says; of other systems nothing is known.
struct Processor {
  bool dot = false, i8mm = false, bf16 = false;

  Processor() {
#if defined(__linux__)
    const unsigned long first = getauxval(AT_HWCAP), second = getauxval(AT_HWCAP2);
    dot = (first >> 20 & 1) && (first >> 8 & 1);  // compiled for ARMv8.2, whose atomic operations may be used
    i8mm = second >> 13 & 1, bf16 = second >> 14 & 1;
#elif defined(__APPLE__)
    dot = has("FEAT_DotProd") && has("FEAT_LSE"), i8mm = has("FEAT_I8MM"), bf16 = has("FEAT_BF16");
#endif
  }

#if defined(__APPLE__)
 private:
  static bool has(const char* feature) {
    const std::string name = std::string("hw.optional.arm.") + feature;
    int there = 0;
    size_t size = sizeof there;
    return sysctlbyname(name.c_str(), &there, &size, nullptr, 0) == 0 && there;
  }
#endif
};
#endif

}  // namespace parlay
