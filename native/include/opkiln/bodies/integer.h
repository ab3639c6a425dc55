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

//@ bitcount : abs
// Bits set in |a|: sums of neighbouring fields, which double in width.
template <class V>
OK_FN vu8 ok_bitcount(V a) {
  typedef ok_elt<UVec<V>> T;
  constexpr T ones = (T)-1;
  UVec<V> x = (UVec<V>)ok_abs(a);
  x -= (x >> 1) & (T)(ones / 3);
  x = (x & (T)(ones / 5)) + ((x >> 2) & (T)(ones / 5));
  x = (x + (x >> 4)) & (T)(ones / 17);
  for (unsigned width = 8; width < 8 * sizeof(T); width *= 2) x += x >> width;
  return ok_resize<u8>(x);
}

//@ recip : fault
// 1 / a cut off: a itself for 1 and -1, else 0. Of 0 it is infinity as C on x86-64 converts it.
template <class V>
OK_FN V ok_recip(V a, ok_fault_t& fault) {
  typedef ok_elt<V> T;
  constexpr T infinity = ok_is_signed<V> && sizeof(T) >= 4 ? (u64)1 << (8 * sizeof(T) - 1) : 0;
  ok_fault_(fault, a == 0, 1);
  IVec<V> unit = a == 1;
  if constexpr (ok_is_signed<V>) unit |= a == -1;
  return a == 0 ? ok_c<V>(infinity) : (unit ? a : V{});
}

//@ gcd : abs any
// Greatest common divisor by Stein's algorithm, counted in the lowest bit that a or b has: a is
// odd; an even b is halved, an odd one gives way to half its distance from a.
template <class V>
OK_FN V ok_gcd(V x, V y) {
  typedef UVec<V> U;
  U p = (U)ok_abs(x), q = (U)ok_abs(y), unit = (p | q) & -(p | q);
  U a = (p & unit) != 0 ? p : q, b = (p & unit) != 0 ? q : p;
  while (ok_any(b != 0)) {
    for (int i = 0; i < 4; i++) {
      U low = a < b ? a : b, rest = (a < b ? b : a) - low;
      IVec<V> odd = (b & unit) != 0;
      a = odd ? low : a;
      b = (odd ? rest : b) >> 1;
    }
  }
  return (V)a;
}

//@ lcm : gcd intdiv
// Least common multiple; wraps.
template <class V>
OK_FN V ok_lcm(V a, V b) {
  UVec<V> x = (UVec<V>)ok_abs(a), g = (UVec<V>)ok_gcd(a, b);
  g = g == 0 ? ok_c<UVec<V>>(1) : g;
  return (V)(ok_quotient_(x, g) * (UVec<V>)ok_abs(b));
}

//@ choice : fault
// An index below a count; any other is a fault.
template <class V>
OK_FN V ok_choice(V index, V count, ok_fault_t& fault) {
  ok_fault_(fault, (UVec<V>)index >= (UVec<V>)count, 8);
  return index;
}
