//@ nextafter : copysign
// The neighbour of x toward y. Bits of floats count upward from zero on either side of it.
template <class V>
OK_FN V ok_nextafter(V x, V y) {
  IVec<V> bits = (IVec<V>)x, away = (x < y) == (bits >= 0);
  V next = (V)(bits - (away | 1)), tiny = ok_copysign((V)ok_c<IVec<V>>(1), y);
  next = x == 0 ? tiny : next;
  next = x == y ? y : next;
  return ((x != x) | (y != y)) ? x + y : next;
}

//@ spacing :
// The distance to the neighbour away from zero, with the sign of x: NaN for infinities, whose bits
// are followed by those of NaN.
template <class V>
OK_FN V ok_spacing(V x) {
  V tiny = (V)ok_c<IVec<V>>(1), step = (V)((IVec<V>)x + 1) - x;
  return x == 0 ? tiny : step;
}

//@ split : abs
// x = m * 2^e with m in [0.5, 1). Zero, infinities and NaN are their own m, with e = 0.
template <class V>
OK_FN void ok_split_(V x, V& m, IVec<V>& e) {
  typedef ok_elt<IVec<V>> I;
  constexpr int p = sizeof(I) == 4 ? 23 : 52;  // bits of the fraction
  constexpr I top = sizeof(I) == 4 ? 255 : 2047, half = top / 2 - 1;
  V a = ok_abs(x);
  IVec<V> small = a < ok_c<V>(sizeof(I) == 4 ? 0x1p-126 : 0x1p-1022);
  IVec<V> bits = (IVec<V>)(small ? x * ok_c<V>(sizeof(I) == 4 ? 0x1p24 : 0x1p53) : x);
  IVec<V> plain = (a == 0) | ~(a < ok_c<V>(__builtin_inf()));
  e = ((bits >> p) & top) - half - (small & (p + 1));
  e &= ~plain;
  m = plain ? x : (V)((bits & ~(top << p)) | (half << p));
}
template <class V>
OK_FN V ok_frexp_mantissa(V x) {
  V m;
  IVec<V> e;
  ok_split_(x, m, e);
  return m;
}
template <class V>
OK_FN vi32 ok_frexp_exponent(V x) {
  V m;
  IVec<V> e;
  ok_split_(x, m, e);
  return ok_resize<i32>(e);
}

//@ ldexp : split
// x * 2^n, rounded once: the mantissa takes the exponent in two steps, and only the second rounds.
template <class I>
OK_FN I ok_within_(I n, int limit) {
  I most = ok_c<I>(limit);
  n = n < -most ? -most : n;
  return n > most ? most : n;
}
template <class V, class N>
OK_FN V ok_ldexp(V x, N n) {
  typedef ok_elt<IVec<V>> I;
  constexpr int p = sizeof(I) == 4 ? 23 : 52;
  constexpr int bias = sizeof(I) == 4 ? 127 : 1023, far = sizeof(I) == 4 ? 110 : 1000;
  IVec<V> by = ok_resize<I>(ok_within_(n, 8 * far));
#ifdef OK_AVX512
  if constexpr (sizeof(V) == 64 && sizeof(I) == 4)
    return __builtin_ia32_scalefps512_mask(x, __builtin_convertvector(by, V), x, -1, 4);
  if constexpr (sizeof(V) == 64 && sizeof(I) == 8)
    return __builtin_ia32_scalefpd512_mask(x, __builtin_convertvector(by, V), x, -1, 4);
#endif
  V m;
  IVec<V> e;
  ok_split_(x, m, e);
  e = ok_within_(e + by, 2 * far);
  IVec<V> first = ok_within_(e, far), second = e - first;
  return m * (V)((first + bias) << p) * (V)((second + bias) << p);
}

//@ modf : abs copysign round
// The fraction, with the sign of x; that of an infinity is 0.
template <class V>
OK_FN V ok_fraction(V x) {
  V f = x - ok_trunc(x);
  return ok_copysign(ok_abs(x) == ok_c<V>(__builtin_inf()) ? V{} : f, x);
}

//@ heaviside :
// 0 below zero, h at it, 1 above.
template <class V>
OK_FN V ok_heaviside(V x, V h) {
  V step = x < 0 ? V{} : ok_c<V>(1);
  return x == 0 ? h : (x != x ? x : step);
}

//@ degrees :
// NumPy's factors, quotients rounded to the operand's own type.
template <class V>
OK_FN V ok_deg2rad(V x) {
  constexpr ok_elt<V> pi = 3.141592653589793238462643383279502884, half_turn = 180;
  return x * ok_c<V>(pi / half_turn);
}
template <class V>
OK_FN V ok_rad2deg(V x) {
  constexpr ok_elt<V> pi = 3.141592653589793238462643383279502884, half_turn = 180;
  return x * ok_c<V>(half_turn / pi);
}
