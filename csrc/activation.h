// Activations, and activation(gate) * up.
#pragma once

#include <type_traits>

#include "elementary.h"
#include "table.h"

namespace parlay {
namespace {

struct Silu {  // x / (1 + e^-x)
  PARLAY_INLINE static Vec of(const Vec& x) { return x / (splat(1.f) + exp(splat(0.f) - x)); }
};

// x Phi(x), Phi the normal distribution function. Its lower tail at -t is e^(-t^2 / 2) h(u) / (1 + t) with
// u = (t - 4) / (t + 4); h was fitted for relative error 2e-9 before rounding. Beyond 14.5 the tail is 0.
struct Gelu {
  PARLAY_INLINE static Vec of(const Vec& x) {
    const Vec t = smaller(larger(x, splat(0.f) - x), splat(14.5f));
    const Vec u = (t - splat(4.f)) / (t + splat(4.f));
    Vec h = splat(-0x1.319bd2p-14f);
    h = fma(h, u, splat(-0x1.09fbf8p-14f));
    h = fma(h, u, splat(0x1.6ab8e4p-11f));
    h = fma(h, u, splat(-0x1.3cb252p-12f));
    h = fma(h, u, splat(-0x1.47e546p-8f));
    h = fma(h, u, splat(0x1.25ed52p-6f));
    h = fma(h, u, splat(-0x1.07c320p-5f));
    h = fma(h, u, splat(0x1.d49518p-6f));
    h = fma(h, u, splat(0x1.cabd4ap-7f));
    h = fma(h, u, splat(-0x1.8c18f0p-4f));
    h = fma(h, u, splat(0x1.e361eap-2f));
    const Vec tail = exp(splat(-0.5f) * t * t) * (h / (splat(1.f) + t));
    const Vec upper = splat(1.f) - tail;
    Vec phi;
    PARLAY_EACH phi.p[i] = x.p[i] < 0 ? tail.p[i] : upper.p[i];
    return x * phi;
  }
};

// x (1 + tanh z) / 2 = x / (1 + e^-2z), z = sqrt(2 / pi) (x + 0.044715 x^3)
struct GeluTanh {
  PARLAY_INLINE static Vec of(const Vec& x) {
    const Vec twice_z = x * fma(x * x, splat(0x1.2444f2p-4f), splat(0x1.988454p+0f));
    return x / (splat(1.f) + exp(splat(0.f) - twice_z));
  }
};

struct Relu {  // max(x, 0); NaN stays NaN
  PARLAY_INLINE static Vec of(const Vec& x) {
    Vec r;
    PARLAY_EACH r.p[i] = x.p[i] < 0 ? splat(0.f).p[i] : x.p[i];
    return r;
  }
};

struct Relu2 {  // max(x, 0)^2
  PARLAY_INLINE static Vec of(const Vec& x) {
    const Vec r = Relu::of(x);
    return r * r;
  }
};

struct Xielu {  // p x^2 + b x above 0, elsewhere n (e^min(x, e) - 1 - x) + b x, of the numbers p, n, b and e
  PARLAY_INLINE static Vec of(const Vec& x, const float* numbers) {
    // e^m - 1 is 2 t / (1 - t) with t = tanh(m / 2), which loses no digit near 0.
    const Vec t = tanh(splat(0.5f) * smaller(x, splat(numbers[3])));
    const Vec below = splat(numbers[1]) * ((t + t) / (splat(1.f) - t) - x);
    const Vec above = splat(numbers[0]) * x * x;
    Vec r;
    PARLAY_EACH r.p[i] = x.p[i] > 0 ? above.p[i] : below.p[i];
    return r + splat(numbers[2]) * x;
  }
};

constexpr float kSwigluLimit = 7.f;

struct ClampedSwiglu {  // x / (1 + e^(-1.702 x)) of x, at most the limit; the factor beside it lies between both limits
  PARLAY_INLINE static Vec of(const Vec& gate) {
    const Vec x = smaller(gate, splat(kSwigluLimit));
    return x / (splat(1.f) + exp(x * splat(-1.702f)));
  }
};

// What an activation is multiplied with, given `up`.
template <class T, class Activation>
PARLAY_INLINE Vec factor(const Vec& up) {
  if constexpr (std::is_same_v<Activation, ClampedSwiglu>)
    return rounded<T>(larger(smaller(up, splat(kSwigluLimit)), splat(-kSwigluLimit)) + splat(1.f));
  else
    return up;
}

// Limits keep NaN, as the second operand of `smaller` and `larger` does.
template <class T, class Activation, bool limited>
void activate_mul(const ActivationArgs& a, int64_t begin, int64_t end) {
  const Vec most = splat(a.limit), least = splat(-a.limit);
  for (int64_t row = begin; row < end; ++row) {
    const T* gate = (const T*)a.gate_up + row * 2 * a.width;
    const T* up = gate + a.width;
    T* out = (T*)a.out + row * a.width;
    const auto multiply = [&](int64_t first, int64_t n) __attribute__((always_inline)) {
      Vec active = rounded<T>(Activation::of(load_at(gate, first, n))), other = factor<T, Activation>(load_at(up, first, n));
      if constexpr (limited) active = rounded<T>(smaller(most, active)), other = rounded<T>(larger(least, smaller(most, other)));
      store_at(out, active * other, first, n);
    };
    const int64_t whole = a.width / kLanes * kLanes;
    for (int64_t first = 0; first < whole; first += kLanes) multiply(first, kLanes);
    if (whole < a.width) multiply(whole, a.width - whole);
  }
}

template <class Activation>
void activate_mul(const ActivationArgs& a, int64_t begin, int64_t end) {
  if (a.limit > 0)
    a.bf16 ? activate_mul<bf16, Activation, true>(a, begin, end) : activate_mul<float, Activation, true>(a, begin, end);
  else
    a.bf16 ? activate_mul<bf16, Activation, false>(a, begin, end) : activate_mul<float, Activation, false>(a, begin, end);
}

void act_mul(const ActivationArgs& a, int64_t begin, int64_t end) {
  if (a.activation == kSilu)
    activate_mul<Silu>(a, begin, end);
  else if (a.activation == kGelu)
    activate_mul<Gelu>(a, begin, end);
  else if (a.activation == kGeluTanh)
    activate_mul<GeluTanh>(a, begin, end);
  else if (a.activation == kRelu)
    activate_mul<Relu>(a, begin, end);
  else if (a.activation == kRelu2)
    activate_mul<Relu2>(a, begin, end);
  else
    activate_mul<ClampedSwiglu>(a, begin, end);
}

}  // namespace
}  // namespace parlay
