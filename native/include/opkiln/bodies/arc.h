//@ arcsine : sqrt fma
// asin(b) = b + q for b = a, or sqrt((1 - a) / 2) where a > 1/2. Minimax polynomial of ours
// (mpmath).
template <class V>
OK_FN V ok_arcsine_(V a, V& b) {
  IVec<V> big = a > ok_c<V>(0.5);
  V s = big ? ok_fma(a, ok_c<V>(-0.5), ok_c<V>(0.5)) : a * a, p;
  b = big ? ok_sqrt(s) : a;
#define OK_P(c) p = ok_fma(p, s, ok_c<V>(c));
  if constexpr (sizeof(ok_elt<V>) == 4) {
    p = ok_c<V>(0x1.5967a4p-5f);
    OK_P(0x1.8c3774p-6f)
    OK_P(0x1.747bc8p-5f)
    OK_P(0x1.330208p-4f)
    OK_P(0x1.5555c8p-3f)
  } else {
    p = ok_c<V>(0.03190218392473511);
    OK_P(-0.016209762392341006)
    OK_P(0.01951921143809205)
    OK_P(0.006531201791547626)
    OK_P(0.012168488776033475)
    OK_P(0.013885341278814791)
    OK_P(0.017359694573621118)
    OK_P(0.022371758684566815)
    OK_P(0.030381959112574592)
    OK_P(0.04464285682886277)
    OK_P(0.07500000000336438)
    OK_P(0.1666666666666541)
  }
#undef OK_P
  return p * (b * s);
}
// base + factor (b + q), where what rounding base (a multiple of pi/2) and the sum lost is put
// back.
template <class V>
OK_FN V ok_turn_(V base, V factor, V b, V q) {
  V lo = base * ok_c<V>(sizeof(ok_elt<V>) == 4 ? -2.7827534e-08 : 3.8981718325193755e-17);
  V sum = ok_fma(factor, b, base), lost = ok_fma(factor, b, base - sum);
  return sum + (ok_fma(factor, q, lo) + lost);
}

//@ arcsin : arcsine abs copysign
template <class V>
OK_FN V ok_arcsin(V x) {
  V a = ok_abs(x), b, q = ok_arcsine_(a, b);
  IVec<V> big = a > ok_c<V>(0.5);
  V base = big ? ok_c<V>(1.5707963267948966) : V{};
  return ok_copysign(ok_turn_(base, big ? ok_c<V>(-2) : ok_c<V>(1), b, q), x);
}

//@ arccos : arcsine abs copysign
template <class V>
OK_FN V ok_arccos(V x) {
  V a = ok_abs(x), b, q = ok_arcsine_(a, b);
  IVec<V> big = a > ok_c<V>(0.5);
  V far = x < 0 ? ok_c<V>(3.141592653589793) : V{};
  V base = big ? far : ok_c<V>(1.5707963267948966), factor = big ? ok_c<V>(2) : ok_c<V>(-1);
  return ok_turn_(base, factor, ok_copysign(b, x), ok_copysign(q, x));
}

//@ angle : fma
// atan(n / d) = k pi/4 + a for 0 <= n <= d, d > 0. Minimax polynomial of ours (mpmath).
template <class V>
OK_FN V ok_angle_(V n, V d, V& k) {
  IVec<V> mid = n + n > d;
  V t = (mid ? n - d : n) / (mid ? n + d : d), s = t * t, p;
  k = mid ? ok_c<V>(1) : V{};
#define OK_P(c) p = ok_fma(p, s, ok_c<V>(c));
  if constexpr (sizeof(ok_elt<V>) == 4) {
    p = ok_c<V>(-0x1.a4b9ccp-5f);
    OK_P(0x1.a03e8cp-4f)
    OK_P(-0x1.2250a6p-3f)
    OK_P(0x1.997b9ap-3f)
    OK_P(-0x1.555514p-2f)
  } else {
    p = ok_c<V>(0.010115625485238975);
    OK_P(-0.0274332569491669)
    OK_P(0.04186402681890624)
    OK_P(-0.05121971136396821)
    OK_P(0.0585829153376248)
    OK_P(-0.06663809599003885)
    OK_P(0.07692073821537482)
    OK_P(-0.0909089623960239)
    OK_P(0.11111110659464934)
    OK_P(-0.14285714276382902)
    OK_P(0.1999999999990309)
    OK_P(-0.3333333333333298)
  }
#undef OK_P
  return ok_fma(p, t * s, t);
}
template <class V>
OK_FN V ok_eighths_(V k, V a) {
  constexpr bool s = sizeof(ok_elt<V>) == 4;
  a = ok_fma(k, ok_c<V>(s ? -0x1.777a5cp-26 : 0x1.1a62633145c07p-55), a);
  return ok_fma(k, ok_c<V>(s ? 0x1.921fb6p-1 : 0x1.921fb54442d18p-1), a);
}

//@ arctan : angle abs copysign
template <class V>
OK_FN V ok_arctan(V x) {
  V y = ok_abs(x), one = ok_c<V>(1), k;
  IVec<V> swap = y > 1;
  V a = ok_angle_(swap ? one : y, swap ? y : one, k);
  return ok_copysign(ok_eighths_(swap ? 2 - k : k, swap ? -a : a), x);
}

//@ arctan2 : angle abs copysign
// The angle of the point (x, y), with the special cases of C99.
template <class V>
OK_FN V ok_arctan2(V y, V x) {
  V a = ok_abs(y), b = ok_abs(x), k, n, d, one = ok_c<V>(1);
  IVec<V> swap = a > b, left = (IVec<V>)x < 0;
  n = swap ? b : a;
  d = swap ? a : b;
  // The sum of two large numbers must not overflow; equal ones need no quotient, infinite or not.
  IVec<V> big = d > ok_c<V>(sizeof(ok_elt<V>) == 4 ? 0x1p126 : 0x1p1022), same = big & (n == d);
  V down = big ? ok_c<V>(0.25) : one;
  n = same ? one : n * down;
  d = same ? one : (d == 0 ? one : d * down);
  a = ok_angle_(n, d, k);
  k = swap ? 2 - k : k;
  k = left ? 4 - k : k;
  return ok_copysign(ok_eighths_(k, (swap ^ left) ? -a : a), y);
}
