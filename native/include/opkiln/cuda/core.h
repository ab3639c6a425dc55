//@ core :
// The op bodies on a device: a vector of one lane. A section of this folder stands for the section
// of its name in bodies/; all other sections are pasted as they are. No header is included, so that
// NVRTC needs none.
#define OK_N 1
#define OK_FN static __device__ __forceinline__
#define OK_COLD static __device__ __noinline__
#define OK_MEMBER __device__
// What bodies take from GCC.
#define __builtin_inf() __builtin_bit_cast(f64, 0x7ff0000000000000ul)
#define __builtin_nan(text) __builtin_bit_cast(f64, 0x7ff8000000000000ul)
#define __builtin_fma __fma_rn
#define __builtin_fmaf __fmaf_rn
#define __builtin_memcpy memcpy
#define __builtin_convertvector(x, ...) ok_convert<__VA_ARGS__>(x)
// What T computes in, so that no overflow is undefined: integers wrap.
template <class T, bool = T(0.5) != 0, int = sizeof(T)>
struct ok_wide {
  typedef u32 type;
};
template <class T, int S>
struct ok_wide<T, true, S> {
  typedef T type;
};
template <class T>
struct ok_wide<T, false, 8> {
  typedef u64 type;
};
// One lane with the operators of a GCC vector. Scalars convert to it, lanes of one size cast to
// each other by their bits, and a comparison gives 0 or -1, which is false or true.
template <class T>
struct ok_lane {
  typedef T elt;
  typedef typename ok_wide<T>::type wide;
  typedef ok_lane<typename ok_int<sizeof(T)>::s> mask;
  T x;
  ok_lane() = default;
  __device__ ok_lane(T v) : x(v) {}
  template <class S>
  explicit __device__ ok_lane(ok_lane<S> v) : x(__builtin_bit_cast(T, v.x)) {}
  explicit __device__ operator bool() const { return x != 0; }
  __device__ T& operator[](int) { return x; }
  __device__ const T& operator[](int) const { return x; }
  __device__ ok_lane operator-() const {
    if constexpr (T(0.5) != 0)
      return -x;
    else
      return (T)(0 - (wide)x);
  }
  __device__ ok_lane operator~() const { return (T)~x; }
#define OK_OPERATOR(op, value)                                                       \
  friend __device__ ok_lane operator op(ok_lane a, ok_lane b) { return (T)(value); } \
  __device__ ok_lane& operator op## = (ok_lane b) { return *this = *this op b; }
  OK_OPERATOR(+, (wide)a.x + (wide)b.x)
  OK_OPERATOR(-, (wide)a.x - (wide)b.x)
  OK_OPERATOR(*, (wide)a.x*(wide)b.x)
  OK_OPERATOR(/, a.x / b.x)
  OK_OPERATOR(&, a.x& b.x)
  OK_OPERATOR(|, a.x | b.x)
  OK_OPERATOR(^, a.x ^ b.x)
  OK_OPERATOR(<<, (wide)a.x << b.x)
  OK_OPERATOR(>>, a.x >> b.x)
#undef OK_OPERATOR
#define OK_COMPARISON(op) \
  friend __device__ mask operator op(ok_lane a, ok_lane b) { return a.x op b.x ? -1 : 0; }
  OK_COMPARISON(<)
  OK_COMPARISON(<=)
  OK_COMPARISON(>)
  OK_COMPARISON(>=)
  OK_COMPARISON(==)
  OK_COMPARISON(!=)
#undef OK_COMPARISON
};
template <class T>
using Vec = ok_lane<T>;
template <class V>
using ok_elt = typename V::elt;

//@ lanes :
template <class T>
OK_FN Vec<T> ok_splat(T x) {
  return x;
}
template <class V, class T>
OK_FN V ok_c(T x) {
  return (ok_elt<V>)x;
}
OK_FN vi8 ok_splat_bool(u8 x) { return x ? -1 : 0; }
// A scalar parameter: the low bytes of its slot.
template <class T>
OK_FN Vec<T> ok_param(u64 slot) {
  typedef typename ok_int<sizeof(T)>::u U;
  return (Vec<T>)Vec<U>((U)slot);
}

template <class T>
OK_FN Vec<T> ok_load(const char* p) {
  return *(const T*)p;
}
template <class V>
OK_FN void ok_store(char* p, V v) {
  *(ok_elt<V>*)p = v.x;
}

// By C's conversion; a float that the integer cannot hold gives the lowest one, as on x86.
template <class W, class V>
OK_FN W ok_convert(V v) {
  typedef ok_elt<W> T;
  if constexpr (ok_is_float<V> && !ok_is_float<W>) {
    static_assert(ok_is_signed<W> && sizeof(T) >= 4, "what x86 has an instruction for");
    constexpr T low = (T)((u64)1 << (8 * sizeof(T) - 1));
    constexpr ok_elt<V> end = -(ok_elt<V>)low;
    return v.x >= -end && v.x < end ? (T)v.x : low;
  } else {
    return (T)v.x;
  }
}
template <class T, class V>
OK_FN Vec<T> ok_resize(V x) {
  return (T)x.x;
}

//@ any :
template <class M>
OK_FN bool ok_any(M m) {
  return (bool)m;
}

//@ libm :
// fmod and fmodf, exact on the device too, are known to its compilers.

//@ regs :
// A lane is no vector register: roundings take their general form.
#define OK_UN(name, V, call)
#define OK_BY_PART(name)

//@ fma :
template <class V>
OK_FN V ok_fma(V a, V b, V c) {
  if constexpr (sizeof(V) == 4)
    return __fmaf_rn(a.x, b.x, c.x);
  else
    return __fma_rn(a.x, b.x, c.x);
}

//@ sqrt :
template <class V>
OK_FN V ok_sqrt(V a) {
  if constexpr (sizeof(V) == 4)
    return __fsqrt_rn(a.x);
  else
    return __dsqrt_rn(a.x);
}

//@ intdiv :
template <class V>
OK_FN V ok_quotient_(V a, V b) {
  return a / b;
}
