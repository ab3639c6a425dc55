//@ intdiv : regs
// Quotient rounded toward zero; b is not 0 and not -1 under the lowest a. Up to 16 bits divide
// exactly in f32 and 32 bits in f64, a register at a time; 64 bits go by lane.
template <class T, int L>
struct ok_lanes {
  typedef T type __attribute__((vector_size(L * sizeof(T)), aligned(1), may_alias));
};
template <class V>
OK_FN V ok_quotient_(V a, V b) {
  typedef ok_elt<V> T;
  T x[OK_N], y[OK_N];
  ok_store((char*)x, a);
  ok_store((char*)y, b);
  if constexpr (sizeof(T) == 8) {
    for (int i = 0; i < OK_N; i++) x[i] = x[i] / y[i];
  } else {
    constexpr bool small = sizeof(T) < 4;
    constexpr int W = OK_REG / (small ? 4 : 8), L = W < OK_N ? W : OK_N;
    typedef typename ok_lanes<T, L>::type P;
    typedef typename ok_lanes<i16, L>::type H;
    typedef typename ok_lanes<i32, L>::type I;
    typedef typename ok_lanes<i64, L>::type J;
    for (int i = 0; i < OK_N; i += L) {
      P p = *(P*)(x + i), q = *(P*)(y + i);
      if constexpr (small) {
        typedef typename ok_lanes<f32, L>::type F;
        F r;
        if constexpr (sizeof(T) == 2)
          r = __builtin_convertvector(__builtin_convertvector(p, I), F) /
              __builtin_convertvector(__builtin_convertvector(q, I), F);
        else
          r = __builtin_convertvector(__builtin_convertvector(__builtin_convertvector(p, H), I),
                                      F) /
              __builtin_convertvector(__builtin_convertvector(__builtin_convertvector(q, H), I), F);
        I k = __builtin_convertvector(r, I);
        if constexpr (sizeof(T) == 2)
          p = __builtin_convertvector(k, P);
        else
          p = __builtin_convertvector(__builtin_convertvector(k, H), P);
      } else {
        typedef typename ok_lanes<f64, L>::type F;
        F r = __builtin_convertvector(p, F) / __builtin_convertvector(q, F);
        if constexpr (T(-1) < 0)
          p = __builtin_convertvector(r, P);
        else
          p = __builtin_convertvector(__builtin_convertvector(r, J), P);
      }
      *(P*)(x + i) = p;
    }
  }
  return ok_load<T>((char*)x);
}

//@ ipow : fault any
// Integer power by squaring; wraps. A negative exponent is a fault.
template <class V>
OK_FN V ok_ipow(V a, V b, ok_fault_t& fault) {
  if constexpr (ok_is_signed<V>) {
    ok_fault_(fault, b < 0, 2);
    b = b < 0 ? V{} : b;
  }
  V r = ok_c<V>(1);
  while (ok_any(b != 0)) {
    r = (b & 1) != 0 ? r * a : r;
    a *= a;
    b >>= 1;
  }
  return r;
}

//@ shl :
// Shifts: a count outside [0, width) gives 0, or -1 for the right shift of a negative number.
template <class V>
OK_FN V ok_shl(V a, V b) {
  constexpr int width = 8 * sizeof(ok_elt<V>);
  IVec<V> out = (UVec<V>)b >= width;
  if constexpr (width == 8) {
    return out ? V{} : ok_resize<ok_elt<V>>(ok_resize<u16>(a) << ok_resize<u16>(b & 7));
  } else
    return out ? V{} : a << (b & (width - 1));
}

//@ shr :
template <class V>
OK_FN V ok_shr(V a, V b) {
  constexpr int width = 8 * sizeof(ok_elt<V>);
  IVec<V> out = (UVec<V>)b >= width;
  if constexpr (ok_is_signed<V>) {
    b = out ? ok_c<V>(width - 1) : b;
    if constexpr (width == 8)
      return ok_resize<i8>(ok_resize<i16>(a) >> ok_resize<i16>(b));
    else
      return a >> b;
  } else if constexpr (width == 8) {
    return out ? V{} : ok_resize<u8>(ok_resize<u16>(a) >> ok_resize<u16>(b & 7));
  } else
    return out ? V{} : a >> (b & (width - 1));
}
