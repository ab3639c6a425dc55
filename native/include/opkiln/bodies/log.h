//@ frexp :
// x = m * 2^e with m in [sqrt(1/2), sqrt(2)), e as a float; x positive and finite, else rubbish.
// `binade` is for x that is not subnormal, multiplied by 2^up before.
template <class V>
OK_FN V ok_binade_(V x, V up, V& e) {
  typedef IVec<V> I;
  I b = (I)x, k;
  if constexpr (sizeof(ok_elt<V>) == 4) {
    k = (b - 0x3f3504f3) >> 23;
    e = __builtin_convertvector(k, V) - up;
    return (V)(b - (k << 23));
  } else {
    // Adding the bits of 1.5 * 2^52 turns a small integer into a float without a conversion,
    // which AVX2 lacks for 64 bits.
    k = (b - 0x3fe6a09e00000000) >> 52;
    e = (V)(k + 0x4338000000000000) - (up + 0x1.8p52);
    return (V)(b - (k << 52));
  }
}
template <class V>
OK_FN V ok_frexp_(V x, V& e) {
  constexpr bool single = sizeof(ok_elt<V>) == 4;
  IVec<V> tiny = x < ok_c<V>(single ? 0x1p-126 : 0x1p-1022);
  x = tiny ? x * (single ? 0x1p24f : 0x1p54) : x;
  return ok_binade_(x, tiny ? ok_c<V>(single ? 24 : 54) : V{}, e);
}

//@ logm : fma
// log(1 + f) + lo for f in [sqrt(1/2) - 1, sqrt(2) - 1] and a small lo. f32: minimax polynomial
// of ours (mpmath); f64: fdlibm's e_log.c.
template <class V>
OK_FN V ok_logm_(V f, V lo) {
  V s = f * f, p;
  if constexpr (sizeof(ok_elt<V>) == 4) {
#define OK_P(c) p = ok_fma(p, f, ok_c<V>(c));
    p = ok_c<V>(-0x1.2d3f2cp-4f);
    OK_P(0x1.025f34p-3f)
    OK_P(-0x1.0e682cp-3f)
    OK_P(0x1.2363e2p-3f)
    OK_P(-0x1.54678ap-3f)
    OK_P(0x1.999862p-3f)
    OK_P(-0x1.00023cp-2f)
    OK_P(0x1.555564p-2f)
#undef OK_P
    return ok_fma(s, ok_c<V>(-0.5f), ok_fma(p * f, s, lo)) + f;
  } else {
    V q = f / (f + 2), z = q * q, h = s * 0.5;
#define OK_P(c) p = ok_fma(p, z, ok_c<V>(c));
    p = ok_c<V>(1.479819860511658591e-01);
    OK_P(1.531383769920937332e-01)
    OK_P(1.818357216161805012e-01)
    OK_P(2.222219843214978396e-01)
    OK_P(2.857142874366239149e-01)
    OK_P(3.999999999940941908e-01)
    OK_P(6.666666666666735130e-01)
#undef OK_P
    return f - (h - ok_fma(q, ok_fma(p, z, h), lo));
  }
}
// The logarithms of what is not positive and finite; r elsewhere.
template <class V>
OK_FN V ok_log_odd_(V x, V r) {
  V inf = ok_c<V>(__builtin_inf());
  return ((x > 0) & (x < inf)) ? r : (x == 0 ? -inf : (x < 0 ? inf - inf : x));
}
template <class V>
OK_FN V ok_ln2_(V e, V f) {
  constexpr bool s = sizeof(ok_elt<V>) == 4;
  V lo = e * ok_c<V>(s ? -2.12194440e-4 : 1.90821492927058770002e-10);
  return ok_fma(e, ok_c<V>(s ? 0.693359375 : 6.93147180369123816490e-01), ok_logm_(f, lo));
}

//@ log : frexp logm
// Natural logarithm.
template <class V>
OK_FN V ok_log(V x) {
  V e, m = ok_frexp_(x, e);
  return ok_log_odd_(x, ok_ln2_(e, m - 1));
}

//@ log2 : frexp logm
template <class V>
OK_FN V ok_log2(V x) {
  V e, m = ok_frexp_(x, e), y = ok_logm_(m - 1, V{});
  constexpr bool s = sizeof(ok_elt<V>) == 4;
  V lo = y * ok_c<V>(s ? 0x1.4ae0cp-26 : 0x1.777d0ffda0d24p-56);
  return ok_log_odd_(x, ok_fma(y, ok_c<V>(s ? 0x1.715476p+0 : 0x1.71547652b82fep+0), lo + e));
}

//@ log10 : frexp logm fma
template <class V>
OK_FN V ok_log10(V x) {
  V e, m = ok_frexp_(x, e), y = ok_logm_(m - 1, V{});
  constexpr bool s = sizeof(ok_elt<V>) == 4;
  V lo = y * ok_c<V>(s ? -0x1.5b235ep-27 : 0x1.95355baaafad3p-57);
  lo = ok_fma(e, ok_c<V>(s ? -0x1.ec10cp-27 : -0x1.9dc1da994fd21p-59), lo);
  lo = ok_fma(y, ok_c<V>(s ? 0x1.bcb7b2p-2 : 0x1.bcb7b1526e50ep-2), lo);
  return ok_log_odd_(x, ok_fma(e, ok_c<V>(s ? 0x1.344136p-2 : 0x1.34413509f79ffp-2), lo));
}

//@ log1p : frexp logm scale copysign
// log(1 + x) = log(m) + e log 2 where what rounding 1 + x lost is put back into m.
template <class V>
OK_FN V ok_log1p(V x) {
  V u = x + 1, b = u - 1, c = (1 - (u - b)) + (x - b), e, m = ok_frexp_(u, e);
  c = e < ok_c<V>(60) ? ok_scale(c, -e) : V{};
  return ok_copysign(ok_log_odd_(u, ok_ln2_(e, (m - 1) + c)), x);
}

//@ logaddexp : exp log1p abs
// log(e^x + e^y) = max + log1p(e^-|x - y|).
template <class V>
OK_FN V ok_logaddexp(V x, V y) {
  V d = x == y ? V{} : ok_abs(x - y);
  return (x > y ? x : y) + ok_log1p(ok_exp(-d));
}

//@ logaddexp2 : exp2 log1p abs
template <class V>
OK_FN V ok_logaddexp2(V x, V y) {
  V d = x == y ? V{} : ok_abs(x - y);
  return ok_fma(ok_log1p(ok_exp2(-d)), ok_c<V>(1.4426950408889634), x > y ? x : y);
}

//@ pow : frexp scale abs cap fma round
// x^y = e^(y log x): log x and its product with y as unevaluated sums of two numbers, from the
// series in z = (m - 1) / (m + 1); polynomials of ours (mpmath). Special cases as in C99.
template <class V>
OK_FN V ok_pow(V x, V y) {
  typedef ok_elt<V> T;
  V a = ok_abs(x), e, m = ok_frexp_(a, e), inf = ok_c<V>(__builtin_inf());
  V f = m - 1, d = m + 1, rc = 1 / d, t, z, zl, s, u, w, h, l, p, n, r, q;
  // z + zl = f / (m + 1), with the rounding of m + 1 put back.
  z = f * rc;
  zl = (ok_fma(-z, d, f) - z * (m - (d - 1))) * rc;
  s = z * z;
#define OK_P(c) t = ok_fma(t, s, ok_c<V>(c));
  if constexpr (sizeof(T) == 4) {
    t = ok_c<V>(0x1.dfdaf2p-3f);
    OK_P(0x1.245122p-2f)
    OK_P(0x1.999a04p-2f)
  } else {
    t = ok_c<V>(0.13202150620942818);
    OK_P(0.13256156045281733)
    OK_P(0.1538678757424497)
    OK_P(0.181817836603122)
    OK_P(0.22222222528754565)
    OK_P(0.28571428570044294)
    OK_P(0.4000000000000239)
  }
#undef OK_P
  // u + ul = 2/3 + s t; w + wl = z^3; their product is v + vl.
  V third = ok_c<V>(sizeof(T) == 4 ? 0x1.555556p-1 : 0x1.5555555555555p-1), st = s * t;
  u = third + st;
  V ul = (third - u) + st + ok_c<V>(sizeof(T) == 4 ? -0x1.555556p-26 : 0x1.5555555555555p-55);
  V sl = ok_fma(z, z, -s) + 2 * z * zl;
  w = s * z;
  V wl = ok_fma(s, z, -w) + (s * zl + sl * z), v = w * u;
  V vl = ok_fma(w, u, -v) + (w * ul + wl * u);
  // h + l = log |x| = e log 2 + 2 z + z^3 (...)
  V b = e * ok_c<V>(sizeof(T) == 4 ? 0x1.62e4p-1 : 0x1.62e42fefa38p-1), c = b + 2 * z;
  l = (b - c) + 2 * z;
  h = c + v;
  l = l + ((c - h) + v) + (vl + 2 * zl);
  l = ok_fma(e, ok_c<V>(sizeof(T) == 4 ? 0x1.7f7d1cp-20 : 0x1.ef35793c7673p-45), l);
  h = ok_and(a > 0, a < inf) ? h : (a == 0 ? -inf : a);
  // q + l = y log |x|, kept in the range where the exponential is not 0 or infinite.
  p = y * h;
  l = ok_fma(y, h, -p) + y * l;
  q = ok_raise(ok_cap(p, sizeof(T) == 4 ? 89.0 : 710.0), sizeof(T) == 4 ? -105.0 : -746.0);
  l = q == p ? l : V{};
#define OK_P(c) t = ok_fma(t, r, ok_c<V>(c));
  if constexpr (sizeof(T) == 4) {
    n = ok_rint(q * 1.44269504f);
    h = ok_fma(n, ok_c<V>(-0x1.62e43p-1f), q);
    l = ok_fma(n, ok_c<V>(0x1.05c61p-29f), l);
    r = h + l;
    t = ok_c<V>(0x1.6d53cap-10f);
    OK_P(0x1.123e7p-7f)
    OK_P(0x1.5554e2p-5f)
    OK_P(0x1.55548ap-3f)
  } else {
    n = ok_rint(q * 1.4426950408889634);
    h = ok_fma(n, ok_c<V>(-0x1.62e42fefa39efp-1), q);
    l = ok_fma(n, ok_c<V>(-0x1.abc9e3b39803fp-56), l);
    r = h + l;
    t = ok_c<V>(2.5112779574847208e-08);
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
  t = ok_scale(ok_fma(t, r * r, (h - r) + l) + r + 1, n);
  // Sign and special values.
  IVec<V> whole = ok_rint(y) == y, odd = whole & (ok_rint(y * 0.5) * 2 != y), one;
  IVec<V> sign = (IVec<V>)x & odd & ((ok_elt<IVec<V>>)1 << (8 * sizeof(T) - 1));
  t = (V)((IVec<V>)t ^ sign);
  t = ((x < 0) & ~whole & (a < inf)) ? inf - inf : t;
  one = (x == 1) | (y == 0) | ((a == 1) & (ok_abs(y) == inf));
  return one ? ok_c<V>(1) : t;
}
