//@ sinhcosh : abs cap fma
// |x| = n log 2 + r. With S = sinh r, C = cosh r - 1, u = 2^(n-1) and d = 2^(-n-1):
// sinh |x| = (u - d) (1 + C) + (u + d) S and cosh x = (u + d) (1 + C) + (u - d) S. Half of that is
// computed, so that u is finite. Minimax polynomials of ours (mpmath).
template <bool cosine, class V>
OK_FN V ok_sinhcosh_(V x) {
  typedef IVec<V> I;
  V y = ok_abs(x), m, n, r, s, p, q;
  I up, down;
#define OK_P(c) p = ok_fma(p, s, ok_c<V>(c));
#define OK_Q(c) q = ok_fma(q, s, ok_c<V>(c));
  // Adding 1.5 * 2^23 (2^52) rounds and leaves n in the low bits, ready for the exponent field.
  if constexpr (sizeof(ok_elt<V>) == 4) {
    y = ok_cap(y, 89.5f);
    m = ok_fma(y, ok_c<V>(1.44269504f), ok_c<V>(0x1.8p23f));
    n = m - 0x1.8p23f;
    r = ok_fma(n, ok_c<V>(-0x1.62e43p-1f), y);
    r = ok_fma(n, ok_c<V>(0x1.05c61p-29f), r);
    s = r * r;
    up = ((I)m + 125) << 23;
    down = (125 - (I)ok_cap(m, 0x1.8p23f + 60)) << 23;
    p = ok_c<V>(0x1.a2e314p-13f);
    OK_P(0x1.110fbep-7f)
    OK_P(0x1.555556p-3f)
    q = ok_c<V>(0x1.6d4f18p-10f);
    OK_Q(0x1.5554e6p-5f)
    OK_Q(0.5f)
  } else {
    y = ok_cap(y, 710.6);
    m = ok_fma(y, ok_c<V>(1.4426950408889634), ok_c<V>(0x1.8p52));
    n = m - 0x1.8p52;
    r = ok_fma(n, ok_c<V>(-0x1.62e42fefa39efp-1), y);
    r = ok_fma(n, ok_c<V>(-0x1.abc9e3b39803fp-56), r);
    s = r * r;
    up = ((I)m + 1021) << 52;
    down = (1021 - (I)ok_cap(m, 0x1.8p52 + 60)) << 52;
    p = ok_c<V>(2.5109345134988247e-08);
    OK_P(2.755724340781567e-06)
    OK_P(0.000198412698868338)
    OK_P(0.008333333333321388)
    OK_P(0.16666666666666677)
    q = ok_c<V>(2.763184148093562e-07);
    OK_Q(2.480148845078988e-05)
    OK_Q(0.0013888888948376792)
    OK_Q(0.0416666666665105)
    OK_Q(0.5000000000000013)
  }
#undef OK_P
#undef OK_Q
  p = p * (r * s);
  q = q * s;
  V plus = (V)up + (V)down, minus = (V)up - (V)down;
  if (cosine) {
    s = plus + ok_fma(plus, q, minus * (r + p));
    return s + s;
  }
  s = ok_fma(plus, r, minus) + ok_fma(minus, q, plus * p);
  return ok_copysign(n == 0 ? r + p : s + s, x);
}

//@ sinh : sinhcosh copysign
template <class V>
OK_FN V ok_sinh(V x) {
  return ok_sinhcosh_<false>(x);
}

//@ cosh : sinhcosh copysign
template <class V>
OK_FN V ok_cosh(V x) {
  return ok_sinhcosh_<true>(x);
}

//@ tanh : abs copysign cap fma
// |x| < 0.55: x + x^3 P(x^2); else 1 - 2 / (e^(2|x|) + 1). Minimax polynomials of ours (mpmath).
// Adding 1.5 * 2^23 (2^52) rounds and leaves n in the low bits, ready for the exponent field.
template <class V>
OK_FN V ok_tanh(V x) {
  V y = ok_abs(x), s = x * x, n, r, p, q;
  IVec<V> k;
#define OK_P(c) p = ok_fma(p, r, ok_c<V>(c));
#define OK_Q(c) q = ok_fma(q, s, ok_c<V>(c));
  if constexpr (sizeof(ok_elt<V>) == 4) {
    r = ok_cap(y, 10.0f);
    n = ok_fma(r, ok_c<V>(2.88539008f), ok_c<V>(0x1.8p23f));
    k = (IVec<V>)n << 23;
    n = n - 0x1.8p23f;
    r = ok_fma(n, ok_c<V>(-0x1.62e43p-2f), r);
    p = ok_c<V>(0x1.6d53cap-4f);
    OK_P(0x1.123e7p-2f)
    OK_P(0x1.5554e2p-1f)
    OK_P(0x1.55548ap+0f)
    OK_P(2)
    q = ok_c<V>(-0x1.95d804p-8f);
    OK_Q(0x1.584dbp-6f)
    OK_Q(-0x1.b90b8cp-5f)
    OK_Q(0x1.110c74p-3f)
    OK_Q(-0x1.555548p-2f)
  } else {
    r = ok_cap(y, 20.0);
    n = ok_fma(r, ok_c<V>(2.8853900817779268), ok_c<V>(0x1.8p52));
    k = (IVec<V>)n << 52;
    n = n - 0x1.8p52;
    r = ok_fma(n, ok_c<V>(-0x1.62e42fefa39efp-2), r);
    p = ok_c<V>(5.143097337105058e-05);
    OK_P(0.00028294861356196083)
    OK_P(0.001410930307383436)
    OK_P(0.006349181123454339)
    OK_P(0.025396825470590974)
    OK_P(0.0888888892682672)
    OK_P(0.26666666666610866)
    OK_P(0.6666666666641743)
    OK_P(1.3333333333333348)
    OK_P(2.0000000000000053)
    q = ok_c<V>(-1.905887043116011e-05);
    OK_Q(8.2613751963236e-05)
    OK_Q(-0.00023289352033207427)
    OK_Q(0.0005882534802761751)
    OK_Q(-0.0014554965837299699)
    OK_Q(0.0035920848619911917)
    OK_Q(-0.008863231891823349)
    OK_Q(0.021869488342385446)
    OK_Q(-0.053968253962226015)
    OK_Q(0.13333333333323916)
    OK_Q(-0.3333333333333328)
  }
  OK_P(2)
  OK_P(1)
#undef OK_P
#undef OK_Q
  p = 1 - 2 / ((V)((IVec<V>)p + k) + 1);
  // NaN takes the first branch, whose arithmetic keeps it.
  return ok_copysign(y >= ok_c<V>(0.55f) ? p : ok_fma(q, x * s, x), x);
}

//@ area : fma
// k log 2 + 2 atanh(q) + lo, which is log(2^k m) for q = (m - 1) / (m + 1); |q| < 0.252. Minimax
// polynomial of ours (mpmath).
template <class V>
OK_FN V ok_area_(V k, V q, V lo) {
  constexpr bool single = sizeof(ok_elt<V>) == 4;
  V s = q * q, h = q + q, p;
#define OK_P(c) p = ok_fma(p, s, ok_c<V>(c));
  if constexpr (single) {
    p = ok_c<V>(0x1.02c95ep-3f);
    OK_P(0x1.22e0c4p-3f)
    OK_P(0x1.99a2a8p-3f)
    OK_P(0x1.55554ep-2f)
  } else {
    p = ok_c<V>(0.07630210595326195);
    OK_P(0.06449836623074676)
    OK_P(0.07706409055198163)
    OK_P(0.0909038244885538)
    OK_P(0.1111112251453501)
    OK_P(0.14285714149514497)
    OK_P(0.20000000000785204)
    OK_P(0.3333333333333179)
  }
#undef OK_P
  // Both parts of log 2 are positive, so that an infinite k stays.
  lo = ok_fma(k, ok_c<V>(single ? 0x1.7f7d1cp-20 : 0x1.abc9e3b39803fp-56), lo);
  return ok_fma(k, ok_c<V>(single ? 0x1.62e4p-1 : 0x1.62e42fefa39efp-1), ok_fma(p, s * h, lo) + h);
}

//@ arclog : area frexp scale fma
// log(a + b), or 2 atanh(num / (den + 1)) where small, for a >= b, a + b >= 1. Halves keep the sum
// finite; what rounding it and the denominator (about 2) lost is put back.
template <class V>
OK_FN V ok_arclog_(V a, V b, IVec<V> small, V num, V den) {
  V half = a * ok_c<V>(0.5), h = ok_fma(b, ok_c<V>(0.5), half), e, m = ok_frexp_(h, e);
  V lost = ok_fma(b, ok_c<V>(0.5), half - h);
  lost = a < ok_c<V>(0x1p30) ? ok_scale(lost, -e) : V{};
  num = small ? num : m - 1 + lost;
  den = small ? den : m;
  V d = den + 1, q = num / d;
  return ok_area_(small ? V{} : e + 1, q, q * ((d - 1) - den));
}

//@ arcsinh : arclog sqrt abs copysign
template <class V>
OK_FN V ok_arcsinh(V x) {
  V a = ok_abs(x), one = ok_c<V>(1);
  V r = a > ok_c<V>(0x1p30) ? a : ok_sqrt(ok_fma(a, a, one));
  return ok_copysign(ok_arclog_(r, a, a < ok_c<V>(0.53), a, r), x);
}

//@ arccosh : arclog sqrt
template <class V>
OK_FN V ok_arccosh(V x) {
  V t = x - 1, r = ok_sqrt(x < 1 ? t : ok_fma(t, t, t + t));
  r = x > ok_c<V>(0x1p30) ? x : r;
  return ok_arclog_(x, r, x < ok_c<V>(1.09), r, x);
}

//@ arctanh : area abs copysign
// Half the logarithm of (1 + a) / (1 - a) = 2^k m, whose (m - 1) / (m + 1) needs one division. What
// rounding 1 + a and 1 - a lost is put back.
template <class V>
OK_FN V ok_arctanh(V x) {
  typedef IVec<V> I;
  constexpr bool single = sizeof(ok_elt<V>) == 4;
  constexpr int shift = single ? 23 : 52, bias = single ? 127 : 1023;
  V a = ok_abs(x), one = ok_c<V>(1), up = one + a, down = one - a, k;
  V ul = a - (up - one), dl = (one - down) - a;
  I e = ((I)up - (I)down + ((ok_elt<I>)1 << (shift - 1))) >> shift;
  if constexpr (single)
    k = __builtin_convertvector(e, V);
  else
    k = (V)(e + 0x4338000000000000) - 0x1.8p52;
  V s = (V)((e + bias) << shift), q;
  q = ok_fma(-s, down, up) + ok_fma(-s, dl, ul);
  q = (e == 0 ? a : q) / (e == 0 ? one : ok_fma(s, down, up));
  V y = ok_area_(k, q, V{}) * ok_c<V>(0.5), inf = ok_c<V>(__builtin_inf());
  return ok_copysign(a < 1 ? y : (a == 1 ? inf : inf - inf), x);
}
