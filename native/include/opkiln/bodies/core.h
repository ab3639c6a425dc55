//@ types :
typedef float f32;
typedef double f64;
typedef signed char i8;
typedef short i16;
typedef int i32;
typedef long i64;
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long u64;
template <int S>
struct ok_int;
template <>
struct ok_int<1> {
  typedef i8 s;
  typedef u8 u;
};
template <>
struct ok_int<2> {
  typedef i16 s;
  typedef u16 u;
};
template <>
struct ok_int<4> {
  typedef i32 s;
  typedef u32 u;
};
template <>
struct ok_int<8> {
  typedef i64 s;
  typedef u64 u;
};

//@ core :
// Op bodies over a GCC vector of OK_N lanes; the emitter pastes `core` and the sections it uses.
// Every lane's bits depend on that lane's operands only, never on OK_N, the -march or neighbours.
#pragma GCC diagnostic ignored "-Wpsabi"
#define OK_FN static inline __attribute__((always_inline))
#define OK_COLD static __attribute__((noinline, cold))
#define OK_MEMBER
template <class T>
struct ok_vec {
  typedef T type __attribute__((vector_size(OK_N * sizeof(T))));
  typedef T mem __attribute__((vector_size(OK_N * sizeof(T)), aligned(1), may_alias));
  typedef T one __attribute__((aligned(1), may_alias));
};
template <class T>
using Vec = typename ok_vec<T>::type;
template <class V>
using ok_elt = __typeof__(V{}[0]);

//@ names :
// The signed (IVec, also the mask) and unsigned integer vector as wide as V.
template <class V>
using IVec = Vec<typename ok_int<sizeof(V) / OK_N>::s>;
template <class V>
using UVec = Vec<typename ok_int<sizeof(V) / OK_N>::u>;
typedef Vec<f32> vf32;
typedef Vec<f64> vf64;
typedef Vec<i8> vi8;
typedef Vec<i16> vi16;
typedef Vec<i32> vi32;
typedef Vec<i64> vi64;
typedef Vec<u8> vu8;
typedef Vec<u16> vu16;
typedef Vec<u32> vu32;
typedef Vec<u64> vu64;
template <class V>
constexpr bool ok_is_float = ok_elt<V>(0.5) != 0;
template <class V>
constexpr bool ok_is_signed = ok_elt<V>(-1) < 0;

//@ lanes :
// x - 0 keeps -0.0, which x + 0 would not.
template <class T>
OK_FN Vec<T> ok_splat(T x) {
  return x - Vec<T>{};
}
template <class V, class T>
OK_FN V ok_c(T x) {
  return (ok_elt<V>)x - V{};
}
OK_FN vi8 ok_splat_bool(u8 x) { return ok_splat<i8>(x ? -1 : 0); }

// Zen 4, which older compilers take for a Zen 3, reads 64 bytes by halves. Those that cross a cache
// line, and NumPy's large arrays begin 16 bytes after one, take longer than two loads: a tenth from
// the second cache on.
#if defined(__AVX512F__) && (defined(__znver3__) || defined(__znver4__)) && !defined(__clang__)
#define OK_HALVES 1
typedef int ok_half __attribute__((vector_size(32)));
typedef int ok_half_mem __attribute__((vector_size(32), aligned(1), may_alias));
typedef long long ok_4 __attribute__((vector_size(32)));
typedef long long ok_8 __attribute__((vector_size(64)));
OK_FN ok_8 ok_load_halves(const char* p) {
  const ok_half low = *(const ok_half_mem*)p, high = *(const ok_half_mem*)(p + 32);
  const ok_8 first = (ok_8)__builtin_ia32_si512_256si(low);
  return __builtin_ia32_inserti64x4_mask(first, (ok_4)high, 1, first, -1);
}
#endif
template <class T>
OK_FN Vec<T> ok_load(const char* p) {
#if defined(OK_HALVES)
  if constexpr (sizeof(Vec<T>) == 64) return (Vec<T>)ok_load_halves(p);
#endif
  return *(const typename ok_vec<T>::mem*)p;
}
template <class V>
OK_FN void ok_store(char* p, V v) {
  *(typename ok_vec<ok_elt<V>>::mem*)p = v;
}
// Lane by lane the compiler would go through memory: 4 times as slow for doubles.
template <int... I>
struct ok_places {};
template <int N, int... I>
struct ok_first : ok_first<N - 1, N - 1, I...> {};
template <int... I>
struct ok_first<0, I...> : ok_places<I...> {};
template <class T, int... I>
OK_FN Vec<T> ok_gather_(const char* p, i64 stride, ok_places<I...>) {
  return Vec<T>{*(const typename ok_vec<T>::one*)(p + I * stride)...};
}
template <class T>
OK_FN Vec<T> ok_gather(const char* p, i64 stride) {
  return ok_gather_<T>(p, stride, ok_first<OK_N>{});
}
template <class V>
OK_FN void ok_scatter(char* p, i64 stride, V v) {
  for (int i = 0; i < OK_N; i++) *(typename ok_vec<ok_elt<V>>::one*)(p + i * stride) = v[i];
}

// Integer to integer (also mask to mask): one factor of two at a time, because the compiler goes
// through lanes for wider steps; single AVX-512 instructions where there are some.
#if defined(__AVX512BW__) && defined(__AVX512DQ__) && !defined(__clang__)
#define OK_AVX512 1
typedef char ok_c16 __attribute__((vector_size(16)));
typedef char ok_c32 __attribute__((vector_size(32)));
typedef char ok_c64 __attribute__((vector_size(64)));
typedef short ok_s16 __attribute__((vector_size(16)));
typedef short ok_s32 __attribute__((vector_size(32)));
typedef short ok_s64 __attribute__((vector_size(64)));
typedef int ok_i32 __attribute__((vector_size(32)));
typedef int ok_i64 __attribute__((vector_size(64)));
typedef long long ok_l16 __attribute__((vector_size(16)));
typedef long long ok_l64 __attribute__((vector_size(64)));
#define OK_STEP(na, nb, wide, W64, half, z)                               \
  else if constexpr (sizeof(W) == 64 && a == na && b == nb) {             \
    if constexpr (ok_is_signed<V>)                                        \
      return (W)__builtin_ia32_pmovsx##wide##512_mask((half)x, W64{}, z); \
    else                                                                  \
      return (W)__builtin_ia32_pmovzx##wide##512_mask((half)x, W64{}, z); \
  }
#define OK_BACK(na, nb, name, W64, half, z)                           \
  else if constexpr (sizeof(V) == 64 && a == na && b == nb) {         \
    return (W)__builtin_ia32_pmov##name##512_mask((W64)x, half{}, z); \
  }
#endif
template <class T, class V>
OK_FN Vec<T> ok_resize(V x) {
  typedef Vec<T> W;
  constexpr int a = sizeof(V) / OK_N, b = sizeof(T);
  if constexpr (a == b) {
    return (W)x;
  }
#ifdef OK_STEP
  OK_STEP(1, 2, bw, ok_s64, ok_c32, -1)
  OK_STEP(1, 4, bd, ok_i64, ok_c16, -1)
  OK_STEP(2, 4, wd, ok_i64, ok_s32, -1)
  OK_STEP(2, 8, wq, ok_l64, ok_s16, -1)
  OK_STEP(4, 8, dq, ok_l64, ok_i32, -1)
  OK_BACK(2, 1, wb, ok_s64, ok_c32, -1)
  OK_BACK(4, 1, db, ok_i64, ok_c16, -1)
  OK_BACK(4, 2, dw, ok_i64, ok_s32, -1)
  OK_BACK(8, 2, qw, ok_l64, ok_s16, -1)
  OK_BACK(8, 4, qd, ok_l64, ok_i32, -1)
  // 1 to 8 bytes goes by steps: g++ 12 fails inside (final_scan_insn) where the one-instruction
  // form meets a mask.
  else if constexpr (sizeof(V) == 64 && a == 8 && b == 1) {
    return (W)((ok_l16)__builtin_ia32_pmovqb512_mask((ok_l64)x, ok_c16{}, -1))[0];
  }
#endif
  else if constexpr (a < b) {
    typedef typename ok_int<(a < 8 ? a * 2 : 8)>::s S;
    typedef typename ok_int<(a < 8 ? a * 2 : 8)>::u U;
    if constexpr (ok_is_signed<V>)
      return ok_resize<T>(__builtin_convertvector(x, Vec<S>));
    else
      return ok_resize<T>(__builtin_convertvector(x, Vec<U>));
  }
  else {
    return ok_resize<T>(__builtin_convertvector(x, Vec<typename ok_int<(a > 1 ? a / 2 : 1)>::s>));
  }
}

//@ masks :
// Masks: signed integer vectors of 0 and -1, of any lane width.
template <class T, class M>
OK_FN Vec<typename ok_int<sizeof(T)>::s> ok_mask(M m) {
  return ok_resize<typename ok_int<sizeof(T)>::s>(m);
}
// b is of another type than a only when both are masks.
template <class M, class A, class B>
OK_FN A ok_sel(M m, A a, B b) {
  if constexpr (sizeof(A) == sizeof(B))
    return ok_mask<ok_elt<A>>(m) ? a : (A)b;
  else
    return ok_mask<ok_elt<A>>(m) ? a : ok_mask<ok_elt<A>>(b);
}
template <class A, class B>
OK_FN A ok_and(A a, B b) {
  return a & ok_mask<ok_elt<A>>(b);
}
template <class A, class B>
OK_FN A ok_or(A a, B b) {
  return a | ok_mask<ok_elt<A>>(b);
}
template <class A, class B>
OK_FN A ok_xor(A a, B b) {
  return a ^ ok_mask<ok_elt<A>>(b);
}
template <class A>
OK_FN A ok_not(A a) {
  return ~a;
}
OK_FN vi8 ok_load_bool(const char* p) { return ok_load<i8>(p) != 0; }
template <class M>
OK_FN void ok_store_bool(char* p, M m) {
  ok_store(p, ok_mask<i8>(m) & 1);
}
template <class V>
OK_FN IVec<V> ok_to_bool(V x) {
  return x != 0;
}
template <class T, class M>
OK_FN Vec<T> ok_cast_from_bool(M m) {
  if constexpr (T(0.5) != 0)
    return ok_mask<T>(m) ? ok_splat<T>(1) : Vec<T>{};
  else
    return (Vec<T>)(ok_mask<T>(m) & 1);
}

//@ strided_bool :
OK_FN vi8 ok_gather_bool(const char* p, i64 stride) { return ok_gather<i8>(p, stride) != 0; }
template <class M>
OK_FN void ok_scatter_bool(char* p, i64 stride, M m) {
  ok_scatter(p, stride, ok_mask<i8>(m) & 1);
}

//@ any :
template <class M>
OK_FN bool ok_any(M m) {
#if defined(OK_AVX512)
  if constexpr (sizeof(M) == 64) return __builtin_ia32_ptestmq512((ok_l64)m, (ok_l64)m, -1) != 0;
#endif
  typedef typename ok_int<(sizeof(M) < 8 ? sizeof(M) : 8)>::u W;
  W w[sizeof(M) / sizeof(W)], r = 0;
  __builtin_memcpy(w, &m, sizeof m);
  for (W x : w) r |= x;
  return r != 0;
}

//@ any_from : any
// Whether a lane of unsigned integers reaches the limit. The compiler would not test the bits of
// AVX-512's comparison but make a vector of them first.
template <class U, class T>
OK_FN bool ok_any_from(U v, T limit) {
  const U least = ok_c<U>(limit);
#if defined(OK_AVX512)
  if constexpr (sizeof(U) == 64 && sizeof(ok_elt<U>) == 4)
    return __builtin_ia32_ucmpd512_mask((ok_i64)v, (ok_i64)least, 5, -1) != 0;
  if constexpr (sizeof(U) == 64 && sizeof(ok_elt<U>) == 8)
    return __builtin_ia32_ucmpq512_mask((ok_l64)v, (ok_l64)least, 5, -1) != 0;
#endif
  return ok_any(v >= least);
}

//@ fault :
// Fault bits collected by lane: `ok_fault_t fault = {};` before the loop, ok_fault_bits after it.
typedef vu8 ok_fault_t;
template <class M>
OK_FN void ok_fault_(ok_fault_t& fault, M mask, u8 bit) {
  fault |= (vu8)ok_mask<i8>(mask) & bit;
}
OK_FN u64 ok_fault_bits(ok_fault_t fault) {
  u8 r = 0;
  for (int i = 0; i < OK_N; i++) r |= fault[i];
  return r;
}
