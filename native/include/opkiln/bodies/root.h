//@ cbrt : frexp abs copysign fma
// |x| = 2^(3k) a with a in [0.35, 2.83]; r about a^(-2/3) from a minimax polynomial of ours
// (mpmath), then one Newton step for y = a r.
template <class V>
OK_FN V ok_cbrt(V x) {
  typedef IVec<V> I;
  constexpr bool single = sizeof(ok_elt<V>) == 4;
  V y = ok_abs(x), e, m = ok_frexp_(y, e), f = m - 1, r, n, k, a;
  IVec<V> usual = (y > 0) & (y < ok_c<V>(__builtin_inf()));
#define OK_P(c) r = ok_fma(r, f, ok_c<V>(c));
  if constexpr (single) {
    r = ok_c<V>(-0x1.684aeep-2f);
    OK_P(0x1.04a51ep-1f)
    OK_P(-0x1.031facp-1f)
    OK_P(0x1.1b6b7ap-1f)
    OK_P(-0x1.552d92p-1f)
    OK_P(0x1.0000c6p+0f)
  } else {
    r = ok_c<V>(0.24875529557149925);
    OK_P(-0.41866903492902824)
    OK_P(0.3961876410761252)
    OK_P(-0.37619710981371846)
    OK_P(0.396145795719973)
    OK_P(-0.4225363437388241)
    OK_P(0.45277595248878166)
    OK_P(-0.49382853959096057)
    OK_P(0.5555543163543405)
    OK_P(-0.666666650989231)
    OK_P(1.0000000024541196)
  }
#undef OK_P
  V magic = ok_c<V>(single ? 0x1.8p23 : 0x1.8p52);
  n = ok_fma(e, ok_c<V>(1.0 / 3), magic);
  k = ok_fma(n - magic, ok_c<V>(-3), e);
  a = m * (k > 0 ? ok_c<V>(2) : (k < 0 ? ok_c<V>(0.5) : ok_c<V>(1)));
  r = r *
      (k > 0 ? ok_c<V>(0.6299605249474366) : (k < 0 ? ok_c<V>(1.5874010519681996) : ok_c<V>(1)));
  y = a * r;
  y = ok_fma(ok_fma(-y * y, y, a), r * ok_c<V>(1.0 / 3), y);
  y = (V)((I)y + ((I)n << (single ? 23 : 52)));
  return usual ? ok_copysign(y, x) : x;
}

//@ hypot : abs sqrt fma
// The square root of x^2 + y^2, scaled where squares would overflow or underflow.
template <class V>
OK_FN V ok_hypot(V x, V y) {
  constexpr bool s = sizeof(ok_elt<V>) == 4;
  V a = ok_abs(x), b = ok_abs(y), inf = ok_c<V>(__builtin_inf()), one = ok_c<V>(1), n, d;
  IVec<V> swap = a > b, infinite = (a == inf) | (b == inf);
  n = swap ? b : a;
  d = swap ? a : b;
  IVec<V> big = d > ok_c<V>(s ? 0x1p62 : 0x1p510), tiny = d < ok_c<V>(s ? 0x1p-40 : 0x1p-400);
  V in = big ? ok_c<V>(s ? 0x1p-70 : 0x1p-600) : (tiny ? ok_c<V>(s ? 0x1p90 : 0x1p700) : one);
  V out = big ? ok_c<V>(s ? 0x1p70 : 0x1p600) : (tiny ? ok_c<V>(s ? 0x1p-90 : 0x1p-700) : one);
  n = n * in;
  d = d * in;
  return infinite ? inf : ok_sqrt(ok_fma(n, n, d * d)) * out;
}
