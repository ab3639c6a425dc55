//@ core :
// Op bodies over a GCC vector of OK_N lanes; the emitter pastes `core` and the sections it uses.
// Every lane's bits depend on that lane's operands only, never on OK_N, the -march or neighbours.
#pragma GCC diagnostic ignored "-Wpsabi"
#define OK_FN static inline __attribute__((always_inline))
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

template <class T>
OK_FN Vec<T> ok_load(const char* p) {
  return *(const typename ok_vec<T>::mem*)p;
}
template <class V>
OK_FN void ok_store(char* p, V v) {
  *(typename ok_vec<ok_elt<V>>::mem*)p = v;
}
template <class T>
OK_FN Vec<T> ok_gather(const char* p, i64 stride) {
  Vec<T> v;
  for (int i = 0; i < OK_N; i++) v[i] = *(const typename ok_vec<T>::one*)(p + i * stride);
  return v;
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
OK_FN vi8 ok_gather_bool(const char* p, i64 stride) { return ok_gather<i8>(p, stride) != 0; }
template <class M>
OK_FN void ok_store_bool(char* p, M m) {
  ok_store(p, ok_mask<i8>(m) & 1);
}
template <class M>
OK_FN void ok_scatter_bool(char* p, i64 stride, M m) {
  ok_scatter(p, stride, ok_mask<i8>(m) & 1);
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

//@ abs :
template <class V>
OK_FN V ok_abs(V x) {
  if constexpr (ok_is_float<V>)
    return (V)((UVec<V>)x & ((ok_elt<UVec<V>>)-1 >> 1));
  else if constexpr (ok_is_signed<V>)
    return x < 0 ? -x : x;
  else
    return x;
}

//@ copysign :
template <class V>
OK_FN V ok_copysign(V x, V y) {
  UVec<V> s = ok_c<UVec<V>>((ok_elt<UVec<V>>)1 << (8 * sizeof(V) / OK_N - 1));
  return (V)(((UVec<V>)x & ~s) | ((UVec<V>)y & s));
}

//@ signbit :
template <class V>
OK_FN IVec<V> ok_signbit(V x) {
  return (IVec<V>)x < 0;
}

//@ cap :
// x limited from above or below by a constant; NaN stays.
template <class V, class T>
OK_FN V ok_cap(V x, T c) {
#ifdef OK_AVX512
  if constexpr (sizeof(V) == 64 && sizeof(x[0]) == 4)
    return __builtin_ia32_minps512_mask(ok_c<V>(c), x, x, -1, 4);
  else if constexpr (sizeof(V) == 64)
    return __builtin_ia32_minpd512_mask(ok_c<V>(c), x, x, -1, 4);
#endif
  return x > ok_c<V>(c) ? ok_c<V>(c) : x;
}
template <class V, class T>
OK_FN V ok_raise(V x, T c) {
#ifdef OK_AVX512
  if constexpr (sizeof(V) == 64 && sizeof(x[0]) == 4)
    return __builtin_ia32_maxps512_mask(ok_c<V>(c), x, x, -1, 4);
  else if constexpr (sizeof(V) == 64)
    return __builtin_ia32_maxpd512_mask(ok_c<V>(c), x, x, -1, 4);
#endif
  return x < ok_c<V>(c) ? ok_c<V>(c) : x;
}

//@ regs :
// fma, sqrt and roundings need instructions that plain vector operators do not name. A vector
// wider than a register goes in parts, and without the instruction through lanes.
#if defined(__AVX512F__)
#define OK_REG 64
#elif defined(__AVX__)
#define OK_REG 32
#else
#define OK_REG 16
#endif
typedef float ok_ps16 __attribute__((vector_size(16)));
typedef float ok_ps32 __attribute__((vector_size(32)));
typedef float ok_ps64 __attribute__((vector_size(64)));
typedef double ok_pd16 __attribute__((vector_size(16)));
typedef double ok_pd32 __attribute__((vector_size(32)));
typedef double ok_pd64 __attribute__((vector_size(64)));
template <class V>
union ok_parts {
  typedef ok_elt<V> P __attribute__((vector_size(OK_REG)));
  V v;
  P p[sizeof(V) / OK_REG + 1];
};
#if defined(__x86_64__) && !defined(__clang__)
#define OK_UN(name, V, call) \
  OK_FN V ok_##name(V x) { return call; }
#define OK_FMA(V, call) \
  OK_FN V ok_fma(V a, V b, V c) { return call; }
#else
#define OK_UN(name, V, call)
#define OK_FMA(V, call)
#endif
// The body of a one-operand function over a vector wider than a register: part by part.
#define OK_BY_PART(name)                                                          \
  if constexpr (sizeof(V) > OK_REG) {                                             \
    ok_parts<V> x = {a};                                                          \
    for (unsigned i = 0; i < sizeof(V) / OK_REG; i++) x.p[i] = ok_##name(x.p[i]); \
    return x.v;                                                                   \
  }

//@ fma : regs
#ifdef __FMA__
OK_FMA(ok_ps16, __builtin_ia32_vfmaddps(a, b, c))
OK_FMA(ok_pd16, __builtin_ia32_vfmaddpd(a, b, c))
OK_FMA(ok_ps32, __builtin_ia32_vfmaddps256(a, b, c))
OK_FMA(ok_pd32, __builtin_ia32_vfmaddpd256(a, b, c))
#endif
#ifdef __AVX512F__
OK_FMA(ok_ps64, __builtin_ia32_vfmaddps512_mask(a, b, c, -1, 4))
OK_FMA(ok_pd64, __builtin_ia32_vfmaddpd512_mask(a, b, c, -1, 4))
#endif
template <class V>
OK_FN V ok_fma(V a, V b, V c) {
#if defined(__clang__) && __has_builtin(__builtin_elementwise_fma)
  return __builtin_elementwise_fma(a, b, c);
#endif
  if constexpr (sizeof(V) > OK_REG) {
    ok_parts<V> x = {a}, y = {b}, z = {c};
    for (unsigned i = 0; i < sizeof(V) / OK_REG; i++) z.p[i] = ok_fma(x.p[i], y.p[i], z.p[i]);
    return z.v;
  } else {
    for (unsigned i = 0; i < sizeof(V) / sizeof a[0]; i++)
      c[i] = sizeof a[0] == 4 ? __builtin_fmaf(a[i], b[i], c[i]) : __builtin_fma(a[i], b[i], c[i]);
    return c;
  }
}

//@ sqrt : regs
#ifdef __SSE2__
OK_UN(sqrt, ok_ps16, __builtin_ia32_sqrtps(x))
OK_UN(sqrt, ok_pd16, __builtin_ia32_sqrtpd(x))
#endif
#ifdef __AVX__
OK_UN(sqrt, ok_ps32, __builtin_ia32_sqrtps256(x))
OK_UN(sqrt, ok_pd32, __builtin_ia32_sqrtpd256(x))
#endif
#ifdef __AVX512F__
OK_UN(sqrt, ok_ps64, __builtin_ia32_sqrtps512_mask(x, x, -1, 4))
OK_UN(sqrt, ok_pd64, __builtin_ia32_sqrtpd512_mask(x, x, -1, 4))
#endif
template <class V>
OK_FN V ok_sqrt(V a) {
#if defined(__clang__) && __has_builtin(__builtin_elementwise_sqrt)
  return __builtin_elementwise_sqrt(a);
#endif
  OK_BY_PART(sqrt)
  for (unsigned i = 0; i < sizeof(V) / sizeof a[0]; i++)
    a[i] = sizeof a[0] == 4 ? __builtin_sqrtf(a[i]) : __builtin_sqrt(a[i]);
  return a;
}

//@ round : regs abs copysign
// x86 rounds to nearest, down, up and toward zero by code; elsewhere adding and taking away 2^23
// (2^52) rounds to an integer.
#ifdef __SSE4_1__
#define OK_ROUND(name, code)                            \
  OK_UN(name, ok_ps16, __builtin_ia32_roundps(x, code)) \
  OK_UN(name, ok_pd16, __builtin_ia32_roundpd(x, code))
OK_ROUND(rint, 8)
OK_ROUND(floor, 9)
OK_ROUND(ceil, 10)
OK_ROUND(trunc, 11)
#undef OK_ROUND
#define OK_ROUND_PARTS(name) OK_BY_PART(name)
#else
#define OK_ROUND_PARTS(name)
#endif
#ifdef __AVX__
#define OK_ROUND(name, code)                               \
  OK_UN(name, ok_ps32, __builtin_ia32_roundps256(x, code)) \
  OK_UN(name, ok_pd32, __builtin_ia32_roundpd256(x, code))
OK_ROUND(rint, 8)
OK_ROUND(floor, 9)
OK_ROUND(ceil, 10)
OK_ROUND(trunc, 11)
#undef OK_ROUND
#endif
#ifdef __AVX512F__
#define OK_ROUND(name, code)                                              \
  OK_UN(name, ok_ps64, __builtin_ia32_rndscaleps_mask(x, code, x, -1, 4)) \
  OK_UN(name, ok_pd64, __builtin_ia32_rndscalepd_mask(x, code, x, -1, 4))
OK_ROUND(rint, 8)
OK_ROUND(floor, 9)
OK_ROUND(ceil, 10)
OK_ROUND(trunc, 11)
#undef OK_ROUND
#endif
template <class V>
OK_FN V ok_rint(V a) {
  OK_ROUND_PARTS(rint)
  V big = ok_c<V>(sizeof a[0] == 4 ? 8388608.0 : 4503599627370496.0), b = ok_abs(a);
  V r = (b + big) - big;
  return ok_copysign(b < big ? r : a, a);
}
template <class V>
OK_FN V ok_floor(V a) {
  OK_ROUND_PARTS(floor)
  V r = ok_rint(a);
  return ok_copysign(r > a ? r - 1 : r, a);
}
template <class V>
OK_FN V ok_ceil(V a) {
  OK_ROUND_PARTS(ceil)
  V r = ok_rint(a);
  return ok_copysign(r < a ? r + 1 : r, a);
}
template <class V>
OK_FN V ok_trunc(V a) {
  OK_ROUND_PARTS(trunc)
  V b = ok_abs(a), r = ok_rint(b);
  return ok_copysign(r > b ? r - 1 : r, a);
}

//@ scale :
// p * 2^n for integral n in [-2200, 2200], rounded once: the first product is exact.
template <class V>
OK_FN V ok_scale(V p, V n) {
#if defined(OK_AVX512)
  if constexpr (sizeof(V) == 64) {
    if constexpr (sizeof(ok_elt<V>) == 4)
      return __builtin_ia32_scalefps512_mask(p, n, p, -1, 4);
    else
      return __builtin_ia32_scalefpd512_mask(p, n, p, -1, 4);
  }
#endif
  // Adding 1.5 * 2^52 leaves n in the low bits: AVX2 has no conversion from double to 64 bits.
  constexpr int shift = sizeof(ok_elt<V>) == 4 ? 23 : 52, one = sizeof(ok_elt<V>) == 4 ? 127 : 1023;
  IVec<V> k, h;
  if constexpr (shift == 23)
    k = __builtin_convertvector(n, IVec<V>);
  else
    k = (IVec<V>)(n + 0x1.8p52) - 0x4338000000000000;
  h = k >> 1;
  return p * (V)((h + one) << shift) * (V)((k - h + one) << shift);
}

//@ exp : scale cap fma
// e^x. Adding and taking away 1.5 * 2^23 (2^52) rounds. Cody-Waite reduction by ln 2, minimax
// polynomial of ours (mpmath, 2^-58; f32 2^-28).
template <class V>
OK_FN V ok_exp(V x) {
  V n, r, p;
#define OK_P(c) p = ok_fma(p, r, ok_c<V>(c));
  if constexpr (sizeof(ok_elt<V>) == 4) {
    x = ok_raise(ok_cap(x, 89.0f), -105.0f);
    n = ok_fma(x, ok_c<V>(1.44269504f), ok_c<V>(0x1.8p23f)) - 0x1.8p23f;
    r = ok_fma(n, ok_c<V>(-0x1.62e43p-1f), x);
    r = ok_fma(n, ok_c<V>(0x1.05c61p-29f), r);
    p = ok_c<V>(0x1.6d53cap-10f);
    OK_P(0x1.123e7p-7f)
    OK_P(0x1.5554e2p-5f)
    OK_P(0x1.55548ap-3f)
    OK_P(0.5f)
  } else {
    x = ok_raise(ok_cap(x, 710.0), -746.0);
    n = ok_fma(x, ok_c<V>(1.4426950408889634), ok_c<V>(0x1.8p52)) - 0x1.8p52;
    r = ok_fma(n, ok_c<V>(-0x1.62e42fefa39efp-1), x);
    r = ok_fma(n, ok_c<V>(-0x1.abc9e3b39803fp-56), r);
    p = ok_c<V>(2.5112779574847208e-08);
    OK_P(2.762606221756207e-07)
    OK_P(2.7557232567177175e-06)
    OK_P(2.4801506442228573e-05)
    OK_P(0.0001984126989889821)
    OK_P(0.001388888892862377)
    OK_P(0.008333333333315896)
    OK_P(0.041666666666599274)
    OK_P(0.16666666666666685)
    OK_P(0.5)
  }
#undef OK_P
  return ok_scale(ok_fma(p, r * r, r) + 1, n);
}

//@ tanh : abs copysign cap fma
// |x| < 0.55: x + x^3 P(x^2); else 1 - 2 / (e^(2|x|) + 1). Minimax polynomials of ours (mpmath).
// Adding 1.5 * 2^23 (2^52) rounds and leaves n in the low bits, ready for the exponent field.
template <class V>
OK_FN V ok_tanh(V x) {
  V y = ok_abs(x), s = x * x, n, r, p, q;
  IVec<V> k;
#define OK_P(c) p = ok_fma(p, r, ok_c<V>(c));
#define OK_Q(c) q = ok_fma(q, s, ok_c<V>(c));
  if constexpr (sizeof(ok_elt<V>) == 4) {
    r = ok_cap(y, 10.0f);
    n = ok_fma(r, ok_c<V>(2.88539008f), ok_c<V>(0x1.8p23f));
    k = (IVec<V>)n << 23;
    n = n - 0x1.8p23f;
    r = ok_fma(n, ok_c<V>(-0x1.62e43p-2f), r);
    p = ok_c<V>(0x1.6d53cap-4f);
    OK_P(0x1.123e7p-2f)
    OK_P(0x1.5554e2p-1f)
    OK_P(0x1.55548ap+0f)
    OK_P(2)
    q = ok_c<V>(-0x1.95d804p-8f);
    OK_Q(0x1.584dbp-6f)
    OK_Q(-0x1.b90b8cp-5f)
    OK_Q(0x1.110c74p-3f)
    OK_Q(-0x1.555548p-2f)
  } else {
    r = ok_cap(y, 20.0);
    n = ok_fma(r, ok_c<V>(2.8853900817779268), ok_c<V>(0x1.8p52));
    k = (IVec<V>)n << 52;
    n = n - 0x1.8p52;
    r = ok_fma(n, ok_c<V>(-0x1.62e42fefa39efp-2), r);
    p = ok_c<V>(5.143097337105058e-05);
    OK_P(0.00028294861356196083)
    OK_P(0.001410930307383436)
    OK_P(0.006349181123454339)
    OK_P(0.025396825470590974)
    OK_P(0.0888888892682672)
    OK_P(0.26666666666610866)
    OK_P(0.6666666666641743)
    OK_P(1.3333333333333348)
    OK_P(2.0000000000000053)
    q = ok_c<V>(-1.905887043116011e-05);
    OK_Q(8.2613751963236e-05)
    OK_Q(-0.00023289352033207427)
    OK_Q(0.0005882534802761751)
    OK_Q(-0.0014554965837299699)
    OK_Q(0.0035920848619911917)
    OK_Q(-0.008863231891823349)
    OK_Q(0.021869488342385446)
    OK_Q(-0.053968253962226015)
    OK_Q(0.13333333333323916)
    OK_Q(-0.3333333333333328)
  }
  OK_P(2)
  OK_P(1)
#undef OK_P
#undef OK_Q
  p = 1 - 2 / ((V)((IVec<V>)p + k) + 1);
  // NaN takes the first branch, whose arithmetic keeps it.
  return ok_copysign(y >= ok_c<V>(0.55f) ? p : ok_fma(q, x * s, x), x);
}

//@ frexp :
// x = m * 2^e with m in [sqrt(1/2), sqrt(2)), e as a float; x positive and finite, else rubbish.
template <class V>
OK_FN V ok_frexp_(V x, V& e) {
  typedef IVec<V> I;
  if constexpr (sizeof(ok_elt<V>) == 4) {
    I tiny = x < ok_c<V>(0x1p-126f);
    I b = (I)(tiny ? x * 0x1p24f : x), k = (b - 0x3f3504f3) >> 23;
    e = __builtin_convertvector(k, V) - (tiny ? ok_c<V>(24) : V{});
    return (V)(b - (k << 23));
  } else {
    // Adding the bits of 1.5 * 2^52 turns a small integer into a float without a conversion,
    // which AVX2 lacks for 64 bits.
    I tiny = x < ok_c<V>(0x1p-1022);
    I b = (I)(tiny ? x * 0x1p54 : x), k = (b - 0x3fe6a09e00000000) >> 52;
    e = (V)(k + 0x4338000000000000) - (tiny ? ok_c<V>(0x1.8p52 + 54) : ok_c<V>(0x1.8p52));
    return (V)(b - (k << 52));
  }
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

//@ log1p : frexp logm scale copysign
// log(1 + x) = log(m) + e log 2 where what rounding 1 + x lost is put back into m.
template <class V>
OK_FN V ok_log1p(V x) {
  V u = x + 1, b = u - 1, c = (1 - (u - b)) + (x - b), e, m = ok_frexp_(u, e);
  c = e < ok_c<V>(60) ? ok_scale(c, -e) : V{};
  return ok_copysign(ok_log_odd_(u, ok_ln2_(e, (m - 1) + c)), x);
}

//@ exp2 : scale cap fma
// 2^x; minimax polynomial of ours (mpmath).
template <class V>
OK_FN V ok_exp2(V x) {
  V n, r, p;
#define OK_P(c) p = ok_fma(p, r, ok_c<V>(c));
  if constexpr (sizeof(ok_elt<V>) == 4) {
    x = ok_raise(ok_cap(x, 129.0f), -151.0f);
    n = (x + 0x1.8p23f) - 0x1.8p23f;
    r = x - n;
    p = ok_c<V>(0x1.3f906cp-13f);
    OK_P(0x1.5f0a66p-10f)
    OK_P(0x1.3b30bp-7f)
    OK_P(0x1.c6af78p-5f)
    OK_P(0x1.ebfbd8p-3f)
    OK_P(0x1.62e43p-1f)
  } else {
    x = ok_raise(ok_cap(x, 1025.0), -1076.0);
    n = (x + 0x1.8p52) - 0x1.8p52;
    r = x - n;
    p = ok_c<V>(4.4499554277714775e-10);
    OK_P(7.073826046257378e-09)
    OK_P(1.0178086773976161e-07)
    OK_P(1.3215435001111045e-06)
    OK_P(1.5252733805507874e-05)
    OK_P(0.00015403530457765014)
    OK_P(0.0013333558146380658)
    OK_P(0.009618129107593498)
    OK_P(0.05550410866482226)
    OK_P(0.24022650695910133)
    OK_P(0.6931471805599453)
  }
  OK_P(1)
#undef OK_P
  return ok_scale(p, n);
}

//@ expm1 : scale cap fma copysign
// e^x - 1 as 2 (2^(n-1) (e^r - 1) + (2^(n-1) - 1/2)), so that 2^n itself need not be finite.
template <class V>
OK_FN V ok_expm1(V x) {
  V n, r, p, s;
#define OK_P(c) p = ok_fma(p, r, ok_c<V>(c));
  if constexpr (sizeof(ok_elt<V>) == 4) {
    r = ok_raise(ok_cap(x, 89.0f), -20.0f);
    n = ok_fma(r, ok_c<V>(1.44269504f), ok_c<V>(0x1.8p23f)) - 0x1.8p23f;
    r = ok_fma(n, ok_c<V>(-0x1.62e43p-1f), r);
    r = ok_fma(n, ok_c<V>(0x1.05c61p-29f), r);
    p = ok_c<V>(0x1.a28efcp-13f);
    OK_P(0x1.6d43aep-10f)
    OK_P(0x1.110fe2p-7f)
    OK_P(0x1.5554fp-5f)
    OK_P(0x1.555556p-3f)
  } else {
    r = ok_raise(ok_cap(x, 710.0), -40.0);
    n = ok_fma(r, ok_c<V>(1.4426950408889634), ok_c<V>(0x1.8p52)) - 0x1.8p52;
    r = ok_fma(n, ok_c<V>(-0x1.62e42fefa39efp-1), r);
    r = ok_fma(n, ok_c<V>(-0x1.abc9e3b39803fp-56), r);
    p = ok_c<V>(2.091957592931933e-09);
    OK_P(2.510928532994128e-08)
    OK_P(2.7557259020367325e-07)
    OK_P(2.7557243535744017e-06)
    OK_P(2.480158734076327e-05)
    OK_P(0.0001984126988675412)
    OK_P(0.0013888888888877408)
    OK_P(0.0083333333333214)
    OK_P(0.04166666666666668)
    OK_P(0.16666666666666677)
  }
  OK_P(0.5)
#undef OK_P
  p = ok_fma(p, r * r, r);
  s = ok_scale(ok_c<V>(0.5), n);
  s = ok_fma(p, s, s - 0.5);
  return ok_copysign(n == 0 ? p : s + s, x);
}

//@ sincos : abs any fma
// |x| = k pi/2 + r + lo with |r| about pi/4 or less; sine and cosine of r by minimax polynomials
// of ours (mpmath). Large arguments (Payne and Hanek): 192 bits of 1/pi, by lane.
template <class T, class I>
static __attribute__((noinline, cold)) void ok_pi_big_(const T* y, T* r, T* l, I* k) {
  static const u64 inverse[20] = {0,
                                  0x517cc1b727220a94,
                                  0xfe13abe8fa9a6ee0,
                                  0x6db14acc9e21c820,
                                  0xff28b1d5ef5de2b0,
                                  0xdb92371d2126e970,
                                  0x0324977504e8c90e,
                                  0x7f0ef58e5894d39f,
                                  0x74411afa975da242,
                                  0x74ce38135a2fbf20,
                                  0x9cc8eb1cc1a99cfa,
                                  0x4e422fc5defc941d,
                                  0x8ffc4bffef02cc07,
                                  0xf79788c5ad05368f,
                                  0xb69b3f6793e584db,
                                  0xa7a31fb34f2ff516,
                                  0xba93dd63f5f2f8bd,
                                  0x9e839cfbc5294975,
                                  0x35fdafd88fc6ae84,
                                  0x2b0198237e3db5d5};
  for (int i = 0; i < OK_N; i++) {
    if (!(y[i] >= (sizeof(T) == 4 ? T(1048576) : T(1073741824)))) continue;
    l[i] = 0;
    if (y[i] - y[i] != 0) {
      r[i] = y[i] - y[i];
      continue;
    }
    f64 x = y[i];
    u64 bits, w[3];
    __builtin_memcpy(&bits, &x, 8);
    u64 m = (bits & 0xfffffffffffff) | 0x10000000000000;
    int at = (int)(bits >> 52) - 1075 + 63, shift = at & 63;
    for (int j = 0; j < 3; j++)
      w[j] = inverse[at / 64 + j] << shift | inverse[at / 64 + j + 1] >> 1 >> (63 - shift);
    // hi:lo is |x| / (pi/2) modulo 4; the top two bits are its integer part. Rounded, they are k.
    unsigned __int128 p = ((unsigned __int128)w[2] * m >> 64) + (unsigned __int128)w[1] * m;
    u64 lo = (u64)p, hi = (u64)(p >> 64) + w[0] * m + ((u64)1 << 61);
    k[i] = (I)(hi >> 62);
    hi = (hi << 2 >> 2) - ((u64)1 << 61);
    bool minus = (i64)hi < 0;
    if (minus) {
      lo = -lo;
      hi = ~hi + (lo == 0);
    }
    // (hi + lo 2^-64) pi in twice the precision.
    f64 a = (f64)hi, b = (f64)(i64)(hi - (u64)a) + (f64)lo * 0x1p-64;
    f64 c = a + b, v = c * 0x1.921fb54442d18p+1;
    b = a - c + b;
    v += __builtin_fma(c, 0x1.921fb54442d18p+1, -v) +
         (c * 0x1.1a62633145c07p-53 + b * 0x1.921fb54442d18p+1);
    r[i] = (T)((minus ? -v : v) * 0x1p-63);
  }
}
template <bool cosine, class V>
OK_FN V ok_sincos_(V x) {
  typedef ok_elt<V> T;
  V y = ok_abs(x), n, r, lo, s, p, q;
  IVec<V> k;
  if constexpr (sizeof(T) == 4) {
    n = ok_fma(y, ok_c<V>(0.636619772f), ok_c<V>(0x1.8p23f));
    k = (IVec<V>)n;
    n = n - 0x1.8p23f;
    r = ok_fma(n, ok_c<V>(-0x1.921fb4p+0f), y);
    r = ok_fma(n, ok_c<V>(-0x1.4442dp-24f), r);
    lo = n * ok_c<V>(-0x1.846988p-48f);
  } else {
    n = ok_fma(y, ok_c<V>(0.6366197723675814), ok_c<V>(0x1.8p52));
    k = (IVec<V>)n;
    n = n - 0x1.8p52;
    r = ok_fma(n, ok_c<V>(-0x1.921fb54442d18p+0), y);
    r = ok_fma(n, ok_c<V>(-0x1.1a62633145c06p-54), r);
    lo = n * ok_c<V>(-0x1.c1cd129024e08p-107);
  }
  if (__builtin_expect(ok_any(y >= (sizeof(T) == 4 ? T(1048576) : T(1073741824))), 0)) {
    T ys[OK_N], rs[OK_N], ls[OK_N];
    ok_elt<IVec<V>> ks[OK_N];
    ok_store((char*)ys, y);
    ok_store((char*)rs, r);
    ok_store((char*)ls, lo);
    ok_store((char*)ks, k);
    ok_pi_big_(ys, rs, ls, ks);
    r = ok_load<T>((char*)rs);
    lo = ok_load<T>((char*)ls);
    k = ok_load<ok_elt<IVec<V>>>((char*)ks);
  }
  s = r * r;
#define OK_P(c) p = ok_fma(p, s, ok_c<V>(c));
#define OK_Q(c) q = ok_fma(q, s, ok_c<V>(c));
  if constexpr (sizeof(T) == 4) {
    p = ok_c<V>(-0x1.989d8cp-13f);
    OK_P(0x1.110542p-7f)
    OK_P(-0x1.55554p-3f)
    q = ok_c<V>(0x1.994754p-16f);
    OK_Q(-0x1.6c09dap-10f)
    OK_Q(0x1.555546p-5f)
  } else {
    p = ok_c<V>(1.589584758535131e-10);
    OK_P(-2.5050740813970423e-08)
    OK_P(2.7557313573851826e-06)
    OK_P(-0.00019841269829438968)
    OK_P(0.008333333333321903)
    OK_P(-0.1666666666666663)
    q = ok_c<V>(-1.135790911471337e-11);
    OK_Q(2.0875687835570115e-09)
    OK_Q(-2.7557314075252893e-07)
    OK_Q(2.480158728845329e-05)
    OK_Q(-0.0013888888888872334)
    OK_Q(0.04166666666666659)
  }
  OK_Q(-0.5)
  OK_Q(1)
#undef OK_P
#undef OK_Q
  p = ok_fma(p, r * s, lo) + r;
  // Quadrant: odd ones swap sine and cosine, the upper two change the sign.
  constexpr ok_elt<IVec<V>> top = (ok_elt<IVec<V>>)1 << (8 * sizeof(T) - 1);
  if (cosine) k = k + 1;
  IVec<V> flip = k << (8 * sizeof(T) - 2);
  if (!cosine) flip ^= (IVec<V>)x;
  return (V)((IVec<V>)((k & 1) != 0 ? q : p) ^ (flip & top));
}

//@ sin : sincos
template <class V>
OK_FN V ok_sin(V x) {
  return ok_sincos_<false>(x);
}

//@ cos : sincos
template <class V>
OK_FN V ok_cos(V x) {
  return ok_sincos_<true>(x);
}

//@ erf : abs copysign cap fma
// |x| < 1: x + x P(x^2); else 1 - exp(t Q(t)), t = |x|. f32: coefficients by N. Juffa (2-clause BSD
// text on Stack Overflow, "Efficient implementation of error function"); f64: ours (mpmath).
template <class V>
OK_FN V ok_erf(V x) {
  V t = ok_abs(x), s = x * x, p, q, m, n;
#define OK_P(c) p = ok_fma(p, t, ok_c<V>(c));
// e^p = 2^n e^r: n stays in the low bits of m, so adding them to the exponent multiplies by 2^n.
#define OK_E(c, magic, ln2)                  \
  m = ok_fma(p, ok_c<V>(c), ok_c<V>(magic)); \
  n = m - magic;                             \
  p = ok_fma(n, ok_c<V>(-ln2), p);
#define OK_R(c) q = ok_fma(q, p, ok_c<V>(c));
#define OK_Q(c) q = ok_fma(q, s, ok_c<V>(c));
  if constexpr (sizeof(ok_elt<V>) == 4) {
    t = ok_cap(t, 4.0f);
    p = ok_c<V>(-1.72853470e-5f);
    OK_P(3.83197126e-4f)
    OK_P(-3.88396438e-3f)
    OK_P(2.42546219e-2f)
    OK_P(-1.06777877e-1f)
    OK_P(-6.34846687e-1f)
    OK_P(-1.28717512e-1f)
    p = ok_fma(p, t, -t);
    OK_E(1.44269504f, 0x1.8p23f, 0x1.62e43p-1f)
    q = ok_c<V>(0x1.6d53cap-10f);
    OK_R(0x1.123e7p-7f)
    OK_R(0x1.5554e2p-5f)
    OK_R(0x1.55548ap-3f)
    OK_R(0.5f)
    OK_R(1)
    OK_R(1)
    p = 1 - (V)((IVec<V>)q + ((IVec<V>)m << 23));
    q = ok_c<V>(-5.96761703e-4f);
    OK_Q(4.99119423e-3f)
    OK_Q(-2.67681349e-2f)
    OK_Q(1.12819925e-1f)
    OK_Q(-3.76125336e-1f)
    OK_Q(1.28379166e-1f)
  } else {
    t = ok_cap(t, 5.92);
    p = ok_c<V>(-8.428259476683267e-12);
    OK_P(3.390044748474638e-10)
    OK_P(-6.331572788353155e-09)
    OK_P(7.273550240763301e-08)
    OK_P(-5.724924264548676e-07)
    OK_P(3.2393239742842088e-06)
    OK_P(-1.3301690545548037e-05)
    OK_P(3.7888913815802285e-05)
    OK_P(-5.865621791021625e-05)
    OK_P(-5.793892259903429e-05)
    OK_P(0.000648528991900201)
    OK_P(-0.0017643325603495137)
    OK_P(0.0002648407182107783)
    OK_P(0.019096494142234112)
    OK_P(-0.10276023151071285)
    OK_P(-0.6366226833711057)
    OK_P(-1.1283788519922398)
    p = p * t;
    OK_E(1.4426950408889634, 0x1.8p52, 0x1.62e42fefa39efp-1)
    q = ok_c<V>(2.7631700543160237e-07);
    OK_R(2.763597218270084e-06)
    OK_R(2.4801488763493513e-05)
    OK_R(0.00019841182856781482)
    OK_R(0.001388888894816675)
    OK_R(0.008333333372678579)
    OK_R(0.04166666666651089)
    OK_R(0.1666666666660735)
    OK_R(0.5000000000000013)
    OK_R(1)
    OK_R(1)
    p = 1 - (V)((IVec<V>)q + ((IVec<V>)m << 52));
    q = ok_c<V>(-7.764805951360939e-10);
    OK_Q(1.370256915942638e-08)
    OK_Q(-1.6204216650845038e-07)
    OK_Q(1.644683368469675e-06)
    OK_Q(-1.4924685750117011e-05)
    OK_Q(0.00012055292035176142)
    OK_Q(-0.0008548325870704008)
    OK_Q(0.005223977604689966)
    OK_Q(-0.02686617064289931)
    OK_Q(0.11283791670942442)
    OK_Q(-0.37612638903183454)
    OK_Q(0.12837916709551256)
  }
#undef OK_P
#undef OK_Q
#undef OK_R
#undef OK_E
  q = ok_fma(q, x, x);
  // NaN takes the first branch, whose arithmetic keeps it.
  return ok_copysign(t >= ok_c<V>(sizeof(ok_elt<V>) == 4 ? 0.927734375 : 1.0) ? p : q, x);
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

//@ remainder : abs any copysign fma round
// C's fmod, exact: one rounded quotient and an exact fma while |a / b| is small, libm's by lane
// for the rest.
extern "C" double fmod(double, double);
extern "C" float fmodf(float, float);
template <class T>
static __attribute__((noinline, cold)) void ok_fmod_big_(const T* a, T* b) {
  for (int i = 0; i < OK_N; i++) b[i] = sizeof(T) == 4 ? fmodf(a[i], b[i]) : fmod(a[i], b[i]);
}
template <class V>
OK_FN V ok_fmod_(V a, V b) {
  typedef ok_elt<V> T;
  V x = ok_abs(a), y = ok_abs(b), q = x / y, r = ok_fma(-ok_trunc(q), y, x);
  r = r < 0 ? r + y : r;
  r = ok_copysign(r, a);
  IVec<V> near = (q < ok_c<V>(sizeof(T) == 4 ? 8388608.0 : 4503599627370496.0)) &
                 (y < ok_c<V>(__builtin_inf()));
  if (__builtin_expect(ok_any(~near), 0)) {
    T as[OK_N], bs[OK_N];
    ok_store((char*)as, a);
    ok_store((char*)bs, b);
    ok_fmod_big_(as, bs);
    r = near ? r : ok_load<T>((char*)bs);
  }
  return r;
}

//@ divmod : fault intdiv remainder copysign round
// Quotient and remainder as NumPy's floor_divide and remainder.
template <class V>
OK_FN void ok_divmod_(V a, V b, V& q, V& r) {
  if constexpr (ok_is_float<V>) {
    V m = ok_fmod_(a, b), div = (a - m) / b, near;
    IVec<V> fix = (m != 0) & ((b < 0) != (m < 0));
    r = fix ? m + b : (m == 0 ? ok_copysign(V{}, b) : m);
    div = fix ? div - 1 : div;
    near = ok_floor(div);
    near = div - near > ok_c<V>(0.5) ? near + 1 : near;
    near = div == 0 ? ok_copysign(V{}, a / b) : near;
    q = b == 0 ? a / b : near;
    r = b == 0 ? m : r;
  } else {
    IVec<V> bad = b == 0;
    if constexpr (ok_is_signed<V>) {
      V low = ok_c<V>((ok_elt<V>)((u64)1 << (8 * sizeof(ok_elt<V>) - 1)));
      bad |= (a == low) & (b == -1);
    }
    V safe = bad ? ok_c<V>(1) : b;
    q = ok_quotient_(a, safe);
    r = a - q * safe;
    if constexpr (ok_is_signed<V>) {
      IVec<V> fix = (r != 0) & ((r ^ safe) < 0);
      q += fix;
      r += fix & safe;
    }
    q = b == 0 ? V{} : q;
  }
}

//@ floordiv : divmod
template <class V>
OK_FN V ok_floordiv(V a, V b, ok_fault_t& fault) {
  V q, r;
  ok_divmod_(a, b, q, r);
  if constexpr (!ok_is_float<V>) {
    ok_fault_(fault, b == 0, 1);
    if constexpr (ok_is_signed<V>) {
      V low = ok_c<V>((ok_elt<V>)((u64)1 << (8 * sizeof(ok_elt<V>) - 1)));
      ok_fault_(fault, (a == low) & (b == -1), 4);
    }
  }
  return q;
}

//@ mod : divmod
template <class V>
OK_FN V ok_mod(V a, V b, ok_fault_t& fault) {
  V q, r;
  ok_divmod_(a, b, q, r);
  if constexpr (!ok_is_float<V>) ok_fault_(fault, b == 0, 1);
  return r;
}

//@ fmod : fault intdiv remainder
// NumPy's fmod: the remainder has the sign of a.
template <class V>
OK_FN V ok_fmod(V a, V b, ok_fault_t& fault) {
  if constexpr (ok_is_float<V>) {
    return ok_fmod_(a, b);
  } else {
    ok_fault_(fault, b == 0, 1);
    IVec<V> bad = b == 0;
    if constexpr (ok_is_signed<V>) bad |= b == -1;
    V safe = bad ? ok_c<V>(1) : b;
    return a - ok_quotient_(a, safe) * safe;
  }
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

//@ isnan :
template <class V>
OK_FN IVec<V> ok_isnan(V x) {
  return x != x;
}

//@ isinf : abs
template <class V>
OK_FN IVec<V> ok_isinf(V x) {
  return ok_abs(x) == ok_c<V>(__builtin_inf());
}

//@ isfinite : abs
template <class V>
OK_FN IVec<V> ok_isfinite(V x) {
  return ok_abs(x) < ok_c<V>(__builtin_inf());
}
