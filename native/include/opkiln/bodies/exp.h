//@ scale :
// p * 2^n for integral n in [-2200, 2200], rounded once: the first product is exact.
template <class V>
OK_FN V ok_scale(V p, V n) {
#if defined(OK_AVX512)
  if constexpr (sizeof(V) == 64) {
    if constexpr (sizeof(ok_elt<V>) == 4)
      return __builtin_ia32_scalefps512_mask(p, n, p, -1, 4);
    else
      return __builtin_ia32_scalefpd512_mask(p, n, p, -1, 4);
  }
#endif
  // Adding 1.5 * 2^52 leaves n in the low bits: AVX2 has no conversion from double to 64 bits.
  constexpr int shift = sizeof(ok_elt<V>) == 4 ? 23 : 52, one = sizeof(ok_elt<V>) == 4 ? 127 : 1023;
  IVec<V> k, h;
  if constexpr (shift == 23)
    k = __builtin_convertvector(n, IVec<V>);
  else
    k = (IVec<V>)(n + 0x1.8p52) - 0x4338000000000000;
  h = k >> 1;
  return p * (V)((h + one) << shift) * (V)((k - h + one) << shift);
}

//@ exp_parts : fma
// e^x = 2^n e^r, and e^r - 1. Adding and taking away 1.5 * 2^23 (2^52) rounds. Cody-Waite reduction
// by ln 2, minimax polynomial of ours (mpmath, 2^-58; f32 2^-28).
template <class V>
OK_FN V ok_exp_reduce_(V x, V& n, V& lo) {
  constexpr bool s = sizeof(ok_elt<V>) == 4;
  V magic = ok_c<V>(s ? 0x1.8p23 : 0x1.8p52);
  n = ok_fma(x, ok_c<V>(s ? 1.44269504 : 1.4426950408889634), magic) - magic;
  lo = ok_c<V>(s ? 0x1.05c61p-29 : -0x1.abc9e3b39803fp-56);
  return ok_fma(n, ok_c<V>(s ? -0x1.62e43p-1 : -0x1.62e42fefa39efp-1), x);
}
template <class V>
OK_FN V ok_exp_reduce_(V x, V& n) {
  V lo, r = ok_exp_reduce_(x, n, lo);
  return ok_fma(n, lo, r);
}
template <class V>
OK_FN V ok_exp_m1_(V r) {
  V p;
#define OK_P(c) p = ok_fma(p, r, ok_c<V>(c));
  if constexpr (sizeof(ok_elt<V>) == 4) {
    p = ok_c<V>(0x1.6d53cap-10f);
    OK_P(0x1.123e7p-7f)
    OK_P(0x1.5554e2p-5f)
    OK_P(0x1.55548ap-3f)
  } else {
    p = ok_c<V>(2.5112779574847208e-08);
    OK_P(2.762606221756207e-07)
    OK_P(2.7557232567177175e-06)
    OK_P(2.4801506442228573e-05)
    OK_P(0.0001984126989889821)
    OK_P(0.001388888892862377)
    OK_P(0.008333333333315896)
    OK_P(0.041666666666599274)
    OK_P(0.16666666666666685)
  }
  OK_P(0.5)
#undef OK_P
  return ok_fma(p, r * r, r);
}

//@ exp : exp_parts scale cap
// e^x
template <class V>
OK_FN V ok_exp(V x) {
  constexpr bool s = sizeof(ok_elt<V>) == 4;
  V n, r = ok_exp_reduce_(ok_raise(ok_cap(x, s ? 89.0 : 710.0), s ? -105.0 : -746.0), n);
  return ok_scale(ok_exp_m1_(r) + 1, n);
}

//@ exp2 : scale cap fma
// 2^x; minimax polynomial of ours (mpmath).
template <class V>
OK_FN V ok_exp2(V x) {
  V n, r, p;
#define OK_P(c) p = ok_fma(p, r, ok_c<V>(c));
  if constexpr (sizeof(ok_elt<V>) == 4) {
    x = ok_raise(ok_cap(x, 129.0f), -151.0f);
    n = (x + 0x1.8p23f) - 0x1.8p23f;
    r = x - n;
    p = ok_c<V>(0x1.3f906cp-13f);
    OK_P(0x1.5f0a66p-10f)
    OK_P(0x1.3b30bp-7f)
    OK_P(0x1.c6af78p-5f)
    OK_P(0x1.ebfbd8p-3f)
    OK_P(0x1.62e43p-1f)
  } else {
    x = ok_raise(ok_cap(x, 1025.0), -1076.0);
    n = (x + 0x1.8p52) - 0x1.8p52;
    r = x - n;
    p = ok_c<V>(4.4499554277714775e-10);
    OK_P(7.073826046257378e-09)
    OK_P(1.0178086773976161e-07)
    OK_P(1.3215435001111045e-06)
    OK_P(1.5252733805507874e-05)
    OK_P(0.00015403530457765014)
    OK_P(0.0013333558146380658)
    OK_P(0.009618129107593498)
    OK_P(0.05550410866482226)
    OK_P(0.24022650695910133)
    OK_P(0.6931471805599453)
  }
  OK_P(1)
#undef OK_P
  return ok_scale(p, n);
}

//@ expm1 : scale cap fma copysign
// e^x - 1 as 2 (2^(n-1) (e^r - 1) + (2^(n-1) - 1/2)), so that 2^n itself need not be finite.
template <class V>
OK_FN V ok_expm1(V x) {
  V n, r, p, s;
#define OK_P(c) p = ok_fma(p, r, ok_c<V>(c));
  if constexpr (sizeof(ok_elt<V>) == 4) {
    r = ok_raise(ok_cap(x, 89.0f), -20.0f);
    n = ok_fma(r, ok_c<V>(1.44269504f), ok_c<V>(0x1.8p23f)) - 0x1.8p23f;
    r = ok_fma(n, ok_c<V>(-0x1.62e43p-1f), r);
    r = ok_fma(n, ok_c<V>(0x1.05c61p-29f), r);
    p = ok_c<V>(0x1.a28efcp-13f);
    OK_P(0x1.6d43aep-10f)
    OK_P(0x1.110fe2p-7f)
    OK_P(0x1.5554fp-5f)
    OK_P(0x1.555556p-3f)
  } else {
    r = ok_raise(ok_cap(x, 710.0), -40.0);
    n = ok_fma(r, ok_c<V>(1.4426950408889634), ok_c<V>(0x1.8p52)) - 0x1.8p52;
    r = ok_fma(n, ok_c<V>(-0x1.62e42fefa39efp-1), r);
    r = ok_fma(n, ok_c<V>(-0x1.abc9e3b39803fp-56), r);
    p = ok_c<V>(2.091957592931933e-09);
    OK_P(2.510928532994128e-08)
    OK_P(2.7557259020367325e-07)
    OK_P(2.7557243535744017e-06)
    OK_P(2.480158734076327e-05)
    OK_P(0.0001984126988675412)
    OK_P(0.0013888888888877408)
    OK_P(0.0083333333333214)
    OK_P(0.04166666666666668)
    OK_P(0.16666666666666677)
  }
  OK_P(0.5)
#undef OK_P
  p = ok_fma(p, r * r, r);
  s = ok_scale(ok_c<V>(0.5), n);
  s = ok_fma(p, s, s - 0.5);
  return ok_copysign(n == 0 ? p : s + s, x);
}
