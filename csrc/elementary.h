// Elementary functions whose bits are ours: exp for sixteen floats, ln for a double.
#pragma once

#include "vec.h"

namespace parlay {
namespace {

// e^x within about one ulp. x = n ln2 + r with |r| <= ln2 / 2; the polynomial was fitted for relative error
// 4e-9 before rounding. Overflow gives inf, underflow passes through the denormals to 0, NaN stays NaN.
PARLAY_INLINE Vec exp(const Vec& x) {
  const Vec bounded = smaller(splat(89.f), larger(splat(-105.f), x));  // NaN stays
  const Vec magic = splat(12582912.f);  // 1.5 * 2^23: adding it rounds to an integer, kept in the low bits
  const Vec shifted = fma(bounded, splat(0x1.715476p+0f), magic);
  const Vec n = shifted - magic;
  // ln2 in two parts; n * the first is exact, so this is right without FMA too.
  const Vec r = fma(n, splat(-0x1.7f7d1cp-20f), fma(n, splat(-0x1.62e4p-1f), bounded));
  Vec q = splat(0x1.685188p-10f);
  q = fma(q, r, splat(0x1.123bdep-7f));
  q = fma(q, r, splat(0x1.555b98p-5f));
  q = fma(q, r, splat(0x1.55548ep-3f));
  q = fma(q, r, splat(0x1.fffff8p-2f));
  const Vec p = fma(r * r, q, r) + splat(1.f);
  Vec result;
#if defined(PARLAY_AVX512)  // the same in one instruction
  result.p[0] = (Part)_mm512_scalef_ps((__m512)p.p[0], (__m512)n.p[0]);
#else
  PARLAY_EACH {
    // 2^n in two factors: n reaches -152 and 128, beyond one float's exponent.
    const PartI e = (PartI)shifted.p[i] - 0x4b400000;
    const PartI half = e >> 1;
    const Part scale0 = (Part)((half + 127) << 23);
    const Part scale1 = (Part)((e - half + 127) << 23);
    result.p[i] = p.p[i] * scale0 * scale1;
  }
#endif
  return result;
}

// tanh within about three ulps: an odd series near 0, elsewhere 1 - 2 / (e^2|x| + 1) with the sign of x.
PARLAY_INLINE Vec tanh(const Vec& x) {
  const Vec size = larger(x, splat(0.f) - x), square = x * x;
  Vec q = splat(-0x1.226e36p-7f);
  q = fma(q, square, splat(0x1.664f48p-6f));
  q = fma(q, square, splat(-0x1.ba1ba2p-5f));
  q = fma(q, square, splat(0x1.111112p-3f));
  q = fma(q, square, splat(-0x1.555556p-2f));
  const Vec near = fma(x * square, q, x);
  const Vec far = splat(1.f) - splat(2.f) / (exp(size + size) + splat(1.f));
  Vec result;
  PARLAY_EACH {
    const Part signed_far = x.p[i] < 0 ? -far.p[i] : far.p[i];
    result.p[i] = size.p[i] < 0.3f ? near.p[i] : signed_far;
    result.p[i] = x.p[i] == x.p[i] ? result.p[i] : x.p[i];
  }
  return result;
}

// e^x of what is not above 0, at least e^-30, within two ulps; NaN counts as -30. Unlike `exp` without fused
// operations, so that every instruction set and the numpy twin give the same bits.
PARLAY_INLINE Vec decay(const Vec& x) {
  const Vec bounded = larger(x, splat(-30.f));
  const Vec magic = splat(12582912.f);
  const Vec shifted = bounded * splat(0x1.715476p+0f) + magic;
  const Vec n = shifted - magic;
  const Vec r = (bounded - n * splat(0x1.62e4p-1f)) - n * splat(0x1.7f7d1cp-20f);
  Vec q = splat(0x1.685188p-10f);
  q = q * r + splat(0x1.123bdep-7f);
  q = q * r + splat(0x1.555b98p-5f);
  q = q * r + splat(0x1.55548ep-3f);
  q = q * r + splat(0x1.fffff8p-2f);
  const Vec p = (r * r * q + r) + splat(1.f);
  Vec result;
  PARLAY_EACH result.p[i] = p.p[i] * (Part)(((PartI)shifted.p[i] - (0x4b400000 - 127)) << 23);
  return result;
}

// ln x of a positive normal double, within two ulps. Only additions, products and one quotient, in an order
// that the numpy twin repeats, so both give the same bits.
PARLAY_INLINE double ln(double x) {
  int64_t bits;
  memcpy(&bits, &x, 8);
  const int64_t e = (bits - 0x3fe6a09e667f3bcd) >> 52;  // x = 2^e m with m in [sqrt 1/2, sqrt 2)
  bits -= e * ((int64_t)1 << 52);
  double m;
  memcpy(&m, &bits, 8);
  const double f = m - 1;
  const double s = f / (2 + f);
  const double z = s * s;
  double p = 1.0 / 21;  // ln m = 2 atanh s = 2s (1 + z/3 + z^2/5 + ...)
  p = p * z + 1.0 / 19;
  p = p * z + 1.0 / 17;
  p = p * z + 1.0 / 15;
  p = p * z + 1.0 / 13;
  p = p * z + 1.0 / 11;
  p = p * z + 1.0 / 9;
  p = p * z + 1.0 / 7;
  p = p * z + 1.0 / 5;
  p = p * z + 1.0 / 3;
  const double twice = s + s;
  const double n = (double)e;
  return n * 0x1.62e42feep-1 + (twice + (twice * (p * z) + n * 0x1.a39ef35793c76p-33));
}

}  // namespace
}  // namespace parlay
