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
