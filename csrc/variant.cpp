// Compiled once per instruction set, each time with its own flags and PARLAY_VARIANT. One with further instructions for
// products alone names the one that it extends, PARLAY_EXTENDS, and takes all other kernels from there.
#include "attention.h"
#include "probe.h"
#include "quantised.h"
#include "table.h"
#if !defined(PARLAY_EXTENDS)
#include "activation.h"
#include "branch.h"
#include "experts.h"
#include "filter.h"
#include "formats.h"
#include "logprobs.h"
#include "norm.h"
#include "pointwise.h"
#include "quantise.h"
#include "recurrent.h"
#include "rotary.h"
#endif

#define PARLAY_JOIN(a, b) a##b
#define PARLAY_NAME(variant) PARLAY_JOIN(table_, variant)
#define PARLAY_QUOTE(x) #x
#define PARLAY_STRING(x) PARLAY_QUOTE(x)

namespace parlay {

const Table* PARLAY_NAME(PARLAY_VARIANT)() {
#if defined(PARLAY_EXTENDS)
  static const Table table = [] {
    Table all = *PARLAY_NAME(PARLAY_EXTENDS)();
    all.isa = PARLAY_STRING(PARLAY_VARIANT);
    all.attention = attention, all.linear = linear, all.probe_multiply = probe_multiply;
    return all;
  }();
#else
#define PARLAY_KERNEL(name, Args) name,
  static const Table table = {PARLAY_STRING(PARLAY_VARIANT),
                              PARLAY_ROW_KERNELS(PARLAY_KERNEL)
                              attention,
                              linear,
                              packed_bytes,
                              gumbel,
                              [](const uint32_t* counter, const uint32_t* key, uint32_t* out) {
                                philox_words(counter, key[0], key[1], out);
                              },
                              probe_read,
                              probe_multiply};
#undef PARLAY_KERNEL
#endif
  return &table;
}

}  // namespace parlay
