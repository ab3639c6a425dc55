//@ max :
// NumPy's maximum: NaN wins, the first of two.
// AVX-512 takes its second operand where they are equal or a is NaN; a NaN in b stays by mask.
template <class V>
OK_FN V ok_max(V a, V b) {
#ifdef OK_AVX512
  if constexpr (sizeof(V) == 64 && ok_is_float<V> && sizeof(ok_elt<V>) == 4)
    return __builtin_ia32_maxps512_mask(b, a, b, __builtin_ia32_cmpps512_mask(b, b, 7, -1, 4), 4);
  if constexpr (sizeof(V) == 64 && ok_is_float<V> && sizeof(ok_elt<V>) == 8)
    return __builtin_ia32_maxpd512_mask(b, a, b, __builtin_ia32_cmppd512_mask(b, b, 7, -1, 4), 4);
#endif
  if constexpr (ok_is_float<V>)
    return ((a >= b) | (a != a)) ? a : b;
  else
    return a > b ? a : b;
}

//@ min :
template <class V>
OK_FN V ok_min(V a, V b) {
#ifdef OK_AVX512
  if constexpr (sizeof(V) == 64 && ok_is_float<V> && sizeof(ok_elt<V>) == 4)
    return __builtin_ia32_minps512_mask(b, a, b, __builtin_ia32_cmpps512_mask(b, b, 7, -1, 4), 4);
  if constexpr (sizeof(V) == 64 && ok_is_float<V> && sizeof(ok_elt<V>) == 8)
    return __builtin_ia32_minpd512_mask(b, a, b, __builtin_ia32_cmppd512_mask(b, b, 7, -1, 4), 4);
#endif
  if constexpr (ok_is_float<V>)
    return ((a <= b) | (a != a)) ? a : b;
  else
    return a < b ? a : b;
}

//@ fmax :
// The larger of two floats, past a NaN to the other; the first of two equals or NaNs.
template <class V>
OK_FN V ok_fmax(V a, V b) {
  return ((a >= b) | (b != b)) ? a : b;
}

//@ fmin :
template <class V>
OK_FN V ok_fmin(V a, V b) {
  return ((a <= b) | (b != b)) ? a : b;
}

//@ sign :
template <class V>
OK_FN V ok_sign(V x) {
  if constexpr (!ok_is_float<V> && !ok_is_signed<V>)
    return (V)(x != 0) & 1;
  else if constexpr (!ok_is_float<V>)
    return (x > 0 ? ok_c<V>(1) : V{}) + (V)(x < 0);
  else {
    V one = ok_c<V>(1);
    return x > 0 ? one : (x < 0 ? -one : (x == 0 ? V{} : x));
  }
}

//@ cmp_iu :
// int64 against uint64, exact as in NumPy.
OK_FN vi64 ok_lt_iu(vi64 a, vu64 b) { return (a < 0) | ((vu64)a < b); }
OK_FN vi64 ok_le_iu(vi64 a, vu64 b) { return (a < 0) | ((vu64)a <= b); }
OK_FN vi64 ok_gt_iu(vi64 a, vu64 b) { return ~ok_le_iu(a, b); }
OK_FN vi64 ok_ge_iu(vi64 a, vu64 b) { return ~ok_lt_iu(a, b); }
OK_FN vi64 ok_eq_iu(vi64 a, vu64 b) { return (a >= 0) & ((vu64)a == b); }
OK_FN vi64 ok_ne_iu(vi64 a, vu64 b) { return ~ok_eq_iu(a, b); }
