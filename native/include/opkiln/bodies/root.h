//@ cbrt : abs copysign fma
// w = r^2 (...) is about a^(-2/3), from r about a^(-1/3) whose bits are those of a divided by -3
// (off by 3.4%) and a minimax polynomial of ours (mpmath) in 1 - a r^3; then a Newton step for y =
// a w.
template <class V>
OK_FN V ok_cbrt(V x) {
  typedef IVec<V> I;
  V a = ok_abs(x), r, s, e, p, w, y;
  I tiny = a < ok_c<V>(sizeof(ok_elt<V>) == 4 ? 0x1p-100 : 0x1p-900);
#define OK_P(c) p = ok_fma(p, e, ok_c<V>(c));
#define OK_R() \
  s = r * r;   \
  e = ok_fma(-a * r, s, ok_c<V>(1));
  if constexpr (sizeof(ok_elt<V>) == 4) {
    a = tiny ? a * 0x1p96f : a;
    r = ok_fma(__builtin_convertvector((I)a, V), ok_c<V>(-1 / 3.0f), ok_c<V>(169.26533f * 0x1p23f));
    r = (V) __builtin_convertvector(r, I);
    OK_R()
    p = ok_c<V>(0x1.ff3a08p-2f);
    OK_P(0x1.1ee0bp-1f)
    OK_P(0x1.5553bp-1f)
    OK_P(0x1.ffff3p-1f)
  } else {
    // Adding the bits of 1.5 * 2^52 turns a small integer into a float without a conversion.
    a = tiny ? a * 0x1p600 : a;
    r = (V)(((I)a >> 32) + 0x4338000000000000) - 0x1.8p52;
    r = ok_fma(r, ok_c<V>(-1 / 3.0), ok_c<V>(1363.932 * 0x1p20 + 0x1.8p52));
    r = (V)((I)r << 32);
    OK_R()
    p = ok_c<V>(0.40647976335038516);
    OK_P(0.4295291173109338)
    OK_P(0.45262902096977037)
    OK_P(0.4937902890862858)
    OK_P(0.5555556398967044)
    OK_P(0.6666667148842277)
    OK_P(0.9999999999801654)
  }
#undef OK_P
#undef OK_R
  w = s * p;
  y = a * w;
  y = ok_fma(ok_fma(-y * y, y, a), w * ok_c<V>(1.0 / 3), y);
  y = tiny ? y * ok_c<V>(sizeof(ok_elt<V>) == 4 ? 0x1p-32 : 0x1p-200) : y;
  return a < ok_c<V>(__builtin_inf()) ? ok_copysign(y, x) : x;
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
