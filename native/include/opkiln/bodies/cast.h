//@ cast :
// Numeric to numeric. Float to integer truncates through i32 (i64 for 32 bits unsigned and wider),
// so an out-of-range value wraps as in C on x86-64, whatever the instruction set.
template <class T, class V>
OK_FN Vec<T> ok_cast(V x) {
  typedef Vec<T> W;
  constexpr bool to_float = T(0.5) != 0;
  constexpr int a = sizeof(V) / OK_N, b = sizeof(T);
  if constexpr (ok_is_float<V> && to_float) {
    if constexpr (a == b)
      return x;
    else
      return __builtin_convertvector(x, W);
  } else if constexpr (ok_is_float<V>) {
    if constexpr (b == 8 && T(-1) > 0) {
      V top = ok_c<V>(9223372036854775808.0);
      IVec<V> big = x >= top;
      vi64 r = __builtin_convertvector(x - (big ? top : V{}), vi64);
      return (W)(r ^ (ok_mask<i64>(big) & ((i64)1 << 63)));
    } else if constexpr (b == 8 || (b == 4 && T(-1) > 0)) {
      return ok_resize<T>(__builtin_convertvector(x, vi64));
    } else {
      return ok_resize<T>(__builtin_convertvector(x, vi32));
    }
  } else if constexpr (to_float && a < 4) {
    return __builtin_convertvector(ok_resize<i32>(x), W);
  } else if constexpr (to_float) {
    return __builtin_convertvector(x, W);
  } else {
    return ok_resize<T>(x);
  }
}
