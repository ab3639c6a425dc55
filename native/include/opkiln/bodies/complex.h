//@ complex :
// A vector of complex values: two vectors. Operators and order (real parts first) as in NumPy's
// loops. OK_ALSO marks overloads of functions that other sections name; a kernel has this section
// because its complex values come from functions that are named here.
#define OK_ALSO OK_FN
template <class V>
struct ok_cplx {
  V re, im;
};
typedef ok_cplx<vf32> vcf32;
typedef ok_cplx<vf64> vcf64;
template <class V>
OK_FN ok_cplx<V> ok_complex(V re, V im) {
  return {re, im};
}
template <class V>
OK_FN ok_cplx<V> ok_complex(V re) {
  return {re, V{}};
}
// x + iy to y + ix: a circular function is so made of the hyperbolic one.
template <class V>
OK_FN ok_cplx<V> ok_swap(ok_cplx<V> z) {
  return {z.im, z.re};
}
template <class V>
OK_FN ok_cplx<V> operator+(ok_cplx<V> a, ok_cplx<V> b) {
  return {a.re + b.re, a.im + b.im};
}
template <class V>
OK_FN ok_cplx<V> operator-(ok_cplx<V> a, ok_cplx<V> b) {
  return {a.re - b.re, a.im - b.im};
}
template <class V>
OK_FN ok_cplx<V> operator-(ok_cplx<V> a) {
  return {-a.re, -a.im};
}
template <class V>
OK_FN ok_cplx<V> operator*(ok_cplx<V> a, ok_cplx<V> b) {
  return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}
template <class V>
OK_FN IVec<V> operator==(ok_cplx<V> a, ok_cplx<V> b) {
  return (a.re == b.re) & (a.im == b.im);
}
template <class V>
OK_FN IVec<V> operator!=(ok_cplx<V> a, ok_cplx<V> b) {
  return (a.re != b.re) | (a.im != b.im);
}
#define OK_ORDER(strict, op)                                        \
  template <class V>                                                \
  OK_FN IVec<V> operator op(ok_cplx<V> a, ok_cplx<V> b) {           \
    return ((a.re strict b.re) & (a.im == a.im) & (b.im == b.im)) | \
           ((a.re == b.re) & (a.im op b.im));                       \
  }
OK_ORDER(<, <)
OK_ORDER(<, <=)
OK_ORDER(>, >)
OK_ORDER(>, >=)
#undef OK_ORDER
template <class M, class V>
OK_ALSO ok_cplx<V> ok_sel(M m, ok_cplx<V> a, ok_cplx<V> b) {
  return {ok_sel(m, a.re, b.re), ok_sel(m, a.im, b.im)};
}
template <class V>
OK_ALSO IVec<V> ok_to_bool(ok_cplx<V> z) {
  return (z.re != 0) | (z.im != 0);
}

//@ conjugate : complex
template <class V>
OK_FN ok_cplx<V> ok_conjugate(ok_cplx<V> z) {
  return {z.re, -z.im};
}

//@ cdivide : complex abs
// Smith's division, as NumPy's: a quotient of the parts of b first, the smaller by the larger.
template <class V>
OK_FN ok_cplx<V> ok_cdivide(ok_cplx<V> a, ok_cplx<V> b) {
  V c = ok_abs(b.re), d = ok_abs(b.im);
  IVec<V> swap = ~(c >= d), zero = (c == 0) & (d == 0);
  V p = swap ? b.im : b.re, q = swap ? b.re : b.im, x = swap ? a.im : a.re, y = swap ? a.re : a.im;
  V ratio = q / p, scale = 1 / (p + q * ratio), s = x * ratio;
  V re = (x + y * ratio) * scale, im = ((swap ? s : y) - (swap ? y : s)) * scale;
  return {zero ? a.re / c : re, zero ? a.im / c : im};
}

//@ creciprocal : complex abs
template <class V>
OK_FN ok_cplx<V> ok_creciprocal(ok_cplx<V> z) {
  IVec<V> swap = ~(ok_abs(z.im) <= ok_abs(z.re));
  V p = swap ? z.im : z.re, q = swap ? z.re : z.im, r = q / p;
  V d = swap ? q * r + p : p + q * r;
  V one = ok_c<V>(1);
  return {(swap ? r : one) / d, -(swap ? one : r) / d};
}

//@ csign : complex hypot abs
// z / |z|; an infinite part counts alone.
template <class V>
OK_FN ok_cplx<V> ok_csign(ok_cplx<V> z) {
  V inf = ok_c<V>(__builtin_inf()), nan = inf - inf, one = ok_c<V>(1), h = ok_hypot(z.re, z.im);
  IVec<V> far = h == inf, re = ok_abs(z.re) == inf, im = ok_abs(z.im) == inf, nil = h == 0;
  V a = z.re / h, b = z.im / h;
  a = far ? (re ? (z.re > 0 ? one : -one) : V{}) : a;
  b = far ? (im ? (z.im > 0 ? one : -one) : V{}) : b;
  IVec<V> both = re & im;
  return {both ? nan : (nil ? V{} : a), both ? nan : (nil ? V{} : b)};
}

//@ cmax : complex
// NumPy's maximum, minimum, fmax and fmin over complex values.
template <class V>
OK_FN ok_cplx<V> ok_cmax(ok_cplx<V> a, ok_cplx<V> b) {
  return ok_sel((a.re != a.re) | (a.im != a.im) | (a >= b), a, b);
}

//@ cmin : complex
template <class V>
OK_FN ok_cplx<V> ok_cmin(ok_cplx<V> a, ok_cplx<V> b) {
  return ok_sel((a.re != a.re) | (a.im != a.im) | (a <= b), a, b);
}

//@ cfmax : complex
template <class V>
OK_FN ok_cplx<V> ok_cfmax(ok_cplx<V> a, ok_cplx<V> b) {
  return ok_sel((b.re != b.re) | (b.im != b.im) | (a >= b), a, b);
}

//@ cfmin : complex
template <class V>
OK_FN ok_cplx<V> ok_cfmin(ok_cplx<V> a, ok_cplx<V> b) {
  return ok_sel((b.re != b.re) | (b.im != b.im) | (a <= b), a, b);
}

//@ cclip : complex
// NumPy's clip orders in its own way: NaN counts in the value alone.
template <class V>
OK_FN ok_cplx<V> ok_cclip(ok_cplx<V> z, ok_cplx<V> low, ok_cplx<V> high) {
  IVec<V> keep = (z.re > low.re) | ((z.re == low.re) & (z.im > low.im));
  z = ok_sel(keep | (z.re != z.re) | (z.im != z.im), z, low);
  keep = (z.re < high.re) | ((z.re == high.re) & (z.im < high.im));
  return ok_sel(keep | (z.re != z.re) | (z.im != z.im), z, high);
}

//@ signed : copysign
// The size of a with the sign of s, + of a NaN: the sign of a computed NaN is x86's or the GPU's
// own, and must not get into a number.
template <class V>
OK_FN V ok_signed(V a, V s) {
  return ok_copysign(a, s == s ? s : V{});
}

//@ csqrt : complex abs hypot sqrt signed
// Kahan's: the larger part from (|x| + |z|) / 2, the other by division; large and tiny z scaled.
template <class V>
OK_FN ok_cplx<V> ok_csqrt(ok_cplx<V> z) {
  constexpr bool single = sizeof(ok_elt<V>) == 4;
  V a = ok_abs(z.re), b = ok_abs(z.im), inf = ok_c<V>(__builtin_inf()), one = ok_c<V>(1);
  V m = a > b ? a : b;
  IVec<V> big = m > ok_c<V>(single ? 0x1p124 : 0x1p1020);
  IVec<V> tiny = m < ok_c<V>(single ? 0x1p-100 : 0x1p-960);
  V in = big ? ok_c<V>(0.0625) : (tiny ? ok_c<V>(single ? 0x1p48 : 0x1p108) : one);
  V out = big ? ok_c<V>(4) : (tiny ? ok_c<V>(single ? 0x1p-24 : 0x1p-54) : one);
  a = a * in;
  b = b * in;
  V t = ok_sqrt((a + ok_hypot(a, b)) * ok_c<V>(0.5)), u = b / (t + t) * out;
  u = t == 0 ? b : u;
  t = t * out;
  IVec<V> left = z.re < 0, far = ok_abs(z.im) == inf;
  return {far ? inf : (left ? u : t), ok_signed(far ? inf : (left ? t : u), z.im)};
}

//@ cexp : complex exp sin cos abs signed
// e^x (cos y + i sin y), with e^x as a square, so that it need not be finite itself.
template <class V>
OK_FN ok_cplx<V> ok_cis_(ok_cplx<V> z, V root, V y) {
  V inf = ok_c<V>(__builtin_inf()), nil = V{};
  IVec<V> wild = ~(ok_abs(z.im) < inf), none = wild & (z.re == -inf), real = z.im == 0;
  V re = root * ok_cos(y) * root, im = root * ok_sin(y) * root;
  re = none ? nil : (wild & (z.re == inf) ? inf : re);
  return {re, real ? z.im : (none ? ok_signed(nil, z.im) : im)};
}
template <class V>
OK_FN ok_cplx<V> ok_cexp(ok_cplx<V> z) {
  return ok_cis_(z, ok_exp(z.re * ok_c<V>(0.5)), z.im);
}

//@ cexp2 : cexp exp2 fma abs
// The angle y log 2 is u + v; v counts while it is small, and beyond an angle of 2^13 (2^27) bits
// are lost, as they are in NumPy everywhere.
template <class V>
OK_FN ok_cplx<V> ok_cexp2(ok_cplx<V> z) {
  constexpr bool single = sizeof(ok_elt<V>) == 4;
  V high = ok_c<V>(single ? 0x1.62e43p-1 : 0x1.62e42fefa39efp-1), u = z.im * high;
  V v = ok_fma(z.im, high, -u) + z.im * ok_c<V>(single ? -0x1.05c61p-29 : 0x1.abc9e3b39803fp-56);
  ok_cplx<V> w = ok_cis_(z, ok_exp2(z.re * ok_c<V>(0.5)), u);
  IVec<V> turn = (ok_abs(v) < ok_c<V>(single ? 0x1p-12 : 0x1p-26)) & (w.re != 0) & (w.im != 0) &
                 (ok_abs(w.re) + ok_abs(w.im) < ok_c<V>(__builtin_inf()));
  return {turn ? ok_fma(-w.im, v, w.re) : w.re, turn ? ok_fma(w.re, v, w.im) : w.im};
}

//@ cexpm1 : cexp expm1
// (e^x - 1) cos y - 2 sin^2(y / 2), from the function of the whole where e^x is large.
template <class V>
OK_FN ok_cplx<V> ok_cexpm1(ok_cplx<V> z) {
  V h = ok_sin(z.im * ok_c<V>(0.5));
  ok_cplx<V> w = ok_cexp(z);
  V near = ok_expm1(z.re) * ok_cos(z.im) - 2 * h * h;
  return {ok_abs(z.re) < 1 ? near : w.re - 1, w.im};
}

//@ clog : complex log log1p hypot arctan2
// log |z| and the angle of z = (x, y). Near 1, where log |z| may be small, from d = x - 1.
template <class V>
OK_FN ok_cplx<V> ok_clog_(V x, V y, V d) {
  constexpr bool single = sizeof(ok_elt<V>) == 4;
  V a = ok_abs(x), b = ok_abs(y), m = a > b ? a : b, one = ok_c<V>(1);
  IVec<V> big = m > ok_c<V>(single ? 0x1p126 : 0x1p1022);
  IVec<V> tiny = m < ok_c<V>(single ? 0x1p-100 : 0x1p-960);
  IVec<V> near = (ok_abs(d) < ok_c<V>(0.5)) & (b < ok_c<V>(0.5));
  V in = big ? ok_c<V>(0.25) : (tiny ? ok_c<V>(single ? 0x1p40 : 0x1p100) : one);
  V back = big ? ok_c<V>(1.3862943611198906)
               : (tiny ? ok_c<V>(single ? -27.725887222397812 : -69.31471805599453) : V{});
  V far = ok_log(ok_hypot(x * in, y * in)) + back;
  V close = ok_log1p(d * (d + 2) + y * y) * ok_c<V>(0.5);
  return {near ? close : far, ok_arctan2(y, x)};
}
template <class V>
OK_FN ok_cplx<V> ok_clog(ok_cplx<V> z) {
  return ok_clog_(z.re, z.im, z.re - 1);
}

//@ clog_base : clog
// The logarithm to another base, 1 / log(base) being given.
template <class V, class T>
OK_FN ok_cplx<V> ok_clog_base(ok_cplx<V> z, T factor) {
  ok_cplx<V> w = ok_clog(z);
  return {w.re * ok_c<V>(factor), w.im * ok_c<V>(factor)};
}

//@ clog1p : clog
template <class V>
OK_FN ok_cplx<V> ok_clog1p(ok_cplx<V> z) {
  return ok_clog_(z.re + 1, z.im, z.re);
}

//@ cpow : cexp clog cdivide round
// e^(b log a); integers up to 99 by repeated squaring, as NumPy.
template <class V>
OK_FN ok_cplx<V> ok_cpow(ok_cplx<V> a, ok_cplx<V> b) {
  V inf = ok_c<V>(__builtin_inf()), nan = inf - inf, nil = V{}, one = ok_c<V>(1);
  V n = ok_abs(b.re);
  IVec<V> whole = (b.im == 0) & (ok_rint(b.re) == b.re) & (n < ok_c<V>(100));
  ok_cplx<V> w = ok_cexp(b * ok_clog(a)), unit = {one, nil}, p = unit, square = a;
  n = whole ? n : nil;
  for (int i = 0; i < 7; i++) {
    V half = ok_floor(n * ok_c<V>(0.5));
    p = ok_sel(half + half != n, p * square, p);
    n = half;
    square = square * square;
  }
  p = ok_sel(b.re < 0, ok_cdivide(unit, p), p);
  w = ok_sel(whole, p, w);
  IVec<V> zero = (a.re == 0) & (a.im == 0), up = b.re > 0;
  w = {zero ? (up ? nil : nan) : w.re, zero ? (up ? nil : nan) : w.im};
  w = {w.re == w.re ? w.re : nan, w.im == w.im ? w.im : nan};  // of one sign
  return ok_sel((b.re == 0) & (b.im == 0), unit, w);
}

//@ csinh : complex sinh cosh exp sin cos abs signed
// sinh x cos y + i cosh x sin y; far out both hyperbolic functions are e^|x| / 2, taken as a
// product, so that they need not be finite themselves.
template <bool cosine, class V>
OK_FN ok_cplx<V> ok_csinhcosh_(ok_cplx<V> z) {
  constexpr bool single = sizeof(ok_elt<V>) == 4;
  V x = z.re, y = z.im, a = ok_abs(x), inf = ok_c<V>(__builtin_inf()), nil = V{};
  V s = ok_sin(y), c = ok_cos(y), root = ok_exp(a * ok_c<V>(0.5)), half = root * ok_c<V>(0.5);
  IVec<V> far = a > ok_c<V>(single ? 80 : 700), wild = ~(ok_abs(y) < inf);
  V sh = ok_sinh(x), ch = ok_cosh(x);
  V p = cosine ? ch : sh, q = cosine ? sh : ch, sign = ok_signed(ok_c<V>(1), x);
  V re = far ? half * c * root * (cosine ? ok_c<V>(1) : sign) : p * c;
  V im = far ? half * s * root * (cosine ? sign : ok_c<V>(1)) : q * s;
  re = wild & (a == inf) ? (cosine ? a : x) : re;
  if (cosine)
    return {re, (x == 0) | (y == 0) ? ok_copysign(nil, sign) * ok_signed(ok_c<V>(1), y) : im};
  return {x == 0 ? x : re, y == 0 ? y : im};
}
template <class V>
OK_FN ok_cplx<V> ok_csinh(ok_cplx<V> z) {
  return ok_csinhcosh_<false>(z);
}

//@ ccosh : csinh
template <class V>
OK_FN ok_cplx<V> ok_ccosh(ok_cplx<V> z) {
  return ok_csinhcosh_<true>(z);
}

//@ csin : csinh
template <class V>
OK_FN ok_cplx<V> ok_csin(ok_cplx<V> z) {
  return ok_swap(ok_csinh(ok_swap(z)));
}

//@ ccos : csinh conjugate
template <class V>
OK_FN ok_cplx<V> ok_ccos(ok_cplx<V> z) {
  return ok_conjugate(ok_csinhcosh_<true>(ok_swap(z)));
}

//@ ctanh : complex sinh cosh exp sin cos abs cap signed
// (sinh x cosh x + i sin y cos y) / (sinh^2 x + cos^2 y), whose real part is 1 far out.
template <class V>
OK_FN ok_cplx<V> ok_ctanh(ok_cplx<V> z) {
  constexpr bool single = sizeof(ok_elt<V>) == 4;
  V x = z.re, y = z.im, a = ok_abs(x), inf = ok_c<V>(__builtin_inf()), one = ok_c<V>(1);
  V s = ok_sin(y), c = ok_cos(y), sh = ok_sinh(ok_cap(a, single ? 20 : 40));
  V ch = ok_cosh(ok_cap(a, single ? 20 : 40)), e = ok_exp(-a), d = sh * sh + c * c;
  IVec<V> far = a > ok_c<V>(single ? 10 : 22), wild = ~(ok_abs(y) < inf), edge = wild & (a == inf);
  V re = far ? one : sh * ch / d, im = far ? 4 * s * c * e * e : s * c / d;
  im = y == 0 ? y : (edge ? ok_signed(V{}, y) : im);
  re = far & (a < inf) & wild ? y - y : re;
  return {x == 0 ? x : ok_copysign(re, x), im};
}

//@ ctan : ctanh
template <class V>
OK_FN ok_cplx<V> ok_ctan(ok_cplx<V> z) {
  return ok_swap(ok_ctanh(ok_swap(z)));
}

//@ carc : csqrt clog conjugate arcsinh arctan2 signed abs
// Kahan's formulas over s = sqrt(1 - z) and t = sqrt(1 + z), in which no sum cancels; far out from
// log 2z. (W. Kahan, Branch cuts for complex elementary functions, 1987)
template <bool cosine, class V>
OK_FN ok_cplx<V> ok_carc_(ok_cplx<V> z) {
  constexpr bool single = sizeof(ok_elt<V>) == 4;
  V x = z.re, y = z.im, one = ok_c<V>(1), edge = ok_c<V>(single ? 0x1p60 : 0x1p500);
  IVec<V> far = (ok_abs(x) > edge) | (ok_abs(y) > edge);
  ok_cplx<V> s = ok_csqrt(ok_cplx<V>{one - x, -y}), t = ok_csqrt(ok_cplx<V>{one + x, y}), w;
  ok_cplx<V> l = ok_clog_(cosine ? x : ok_abs(y), cosine ? ok_abs(y) : x, ok_c<V>(2));
  V re = cosine ? 2 * ok_arctan2(s.re, t.re) : ok_arctan2(x, s.re * t.re - s.im * t.im);
  V im = ok_arcsinh(s.re * t.im - s.im * t.re);
  V wide = ok_signed(l.re + ok_c<V>(0.6931471805599453), y);
  w = {far ? l.im : re, far ? wide : im};
  w.re = x == 0 ? (cosine ? ok_c<V>(1.5707963267948966) : x) : w.re;
  return cosine ? ok_conjugate(w) : w;
}

//@ carcsin : carc
template <class V>
OK_FN ok_cplx<V> ok_carcsin(ok_cplx<V> z) {
  return ok_carc_<false>(z);
}

//@ carccos : carc
template <class V>
OK_FN ok_cplx<V> ok_carccos(ok_cplx<V> z) {
  return ok_carc_<true>(z);
}

//@ carcsinh : carcsin
template <class V>
OK_FN ok_cplx<V> ok_carcsinh(ok_cplx<V> z) {
  return ok_swap(ok_carcsin(ok_swap(z)));
}

//@ carccosh : carccos
template <class V>
OK_FN ok_cplx<V> ok_carccosh(ok_cplx<V> z) {
  ok_cplx<V> w = ok_carccos(z);
  return {ok_abs(w.im), ok_signed(w.re, z.im)};
}

//@ carctanh : complex hypot log1p arctan2 signed abs
// log1p(4 x / |1 - z|^2) / 4 and the angle of (1 - x)(1 + x) - y^2 + 2 i y, halved.
template <class V>
OK_FN ok_cplx<V> ok_carctanh(ok_cplx<V> z) {
  constexpr bool single = sizeof(ok_elt<V>) == 4;
  V a = ok_abs(z.re), y = z.im, b = ok_abs(y), inf = ok_c<V>(__builtin_inf()), one = ok_c<V>(1);
  V d = one - a, u = ok_hypot(d, y);
  // Very near to 1 the quotient would overflow: its root, brought down by a power of 2.
  IVec<V> tiny = (u < ok_c<V>(single ? 0x1p-50 : 0x1p-400)) & (u != 0);
  V q = tiny ? 2 / (u * ok_c<V>(single ? 0x1p40 : 0x1p200)) - one : 4 * (a / u) / u;
  V l = ok_log1p(q);
  V re = tiny ? (l + ok_c<V>(single ? 27.725887222397812 : 138.62943611198907)) * ok_c<V>(0.5)
              : l * ok_c<V>(0.25);
  V im = ok_arctan2(y + y, d * (one + a) - y * y) * ok_c<V>(0.5);
  V edge = ok_c<V>(single ? 0x1p60 : 0x1p500);
  IVec<V> far = (a > edge) | (b > edge);
  re = (a == inf) | (b == inf) | (a == 0) ? V{} : re;
  im = far ? (y != y ? y : ok_copysign(ok_c<V>(1.5707963267948966), y)) : im;
  return {ok_signed(re, z.re), im};
}

//@ carctan : carctanh
template <class V>
OK_FN ok_cplx<V> ok_carctan(ok_cplx<V> z) {
  return ok_swap(ok_carctanh(ok_swap(z)));
}

//@ complex_memory : complex
// In memory the parts of a value lie side by side. The emitter names these functions with the type
// in memory: ok_load_complex<cf32>.
// Not c64: an emitted kernel names the stride of its operand 64 so.
struct __attribute__((packed, may_alias)) cf32 {
  typedef f32 part;
  f32 re, im;
};
struct __attribute__((packed, may_alias)) cf64 {
  typedef f64 part;
  f64 re, im;
};
template <class C>
using ok_cplx_of = ok_cplx<Vec<typename C::part>>;
template <class C>
OK_FN ok_cplx_of<C> ok_splat_complex(C z) {
  return {ok_splat(z.re), ok_splat(z.im)};
}
// `part` functions take the first `count` lanes; idle ones repeat lane 0.
template <class C>
OK_FN ok_cplx_of<C> ok_gather_part_complex(const char* p, i64 stride, i64 count) {
  ok_cplx_of<C> z;
  for (int i = 0; i < OK_N; i++) {
    const C* from = (const C*)(p + (i < count ? i : 0) * stride);
    z.re[i] = from->re;
    z.im[i] = from->im;
  }
  return z;
}
template <class C>
OK_FN ok_cplx_of<C> ok_gather_complex(const char* p, i64 stride) {
  return ok_gather_part_complex<C>(p, stride, OK_N);
}
template <class C>
OK_FN ok_cplx_of<C> ok_load_complex(const char* p) {
#if defined(__clang__)
  return ok_gather_complex<C>(p, sizeof(C));
#else
  typedef Vec<typename C::part> V;
  const V a = ok_load<typename C::part>(p), b = ok_load<typename C::part>(p + sizeof(V));
  const IVec<V> even = IVec<V>{OK_IOTA} * 2;
  return {__builtin_shuffle(a, b, even), __builtin_shuffle(a, b, even + 1)};
#endif
}
template <class C>
OK_FN ok_cplx_of<C> ok_load_part_complex(const char* p, i64 count) {
  return count >= OK_N ? ok_load_complex<C>(p) : ok_gather_part_complex<C>(p, sizeof(C), count);
}
template <class C>
OK_FN void ok_scatter_part_complex(char* p, i64 stride, ok_cplx_of<C> z, i64 count) {
  for (int i = 0; i < OK_N; i++) {
    if (i < count) {
      C* to = (C*)(p + i * stride);
      to->re = z.re[i];
      to->im = z.im[i];
    }
  }
}
template <class C>
OK_FN void ok_scatter_complex(char* p, i64 stride, ok_cplx_of<C> z) {
  ok_scatter_part_complex<C>(p, stride, z, OK_N);
}
template <class C>
OK_FN void ok_store_complex(char* p, ok_cplx_of<C> z) {
#if defined(__clang__)
  ok_scatter_complex<C>(p, sizeof(C), z);
#else
  typedef Vec<typename C::part> V;
  const IVec<V> lane = IVec<V>{OK_IOTA}, at = (lane >> 1) + (lane & 1) * OK_N;
  ok_store(p, __builtin_shuffle(z.re, z.im, at));
  ok_store(p + sizeof(V), __builtin_shuffle(z.re, z.im, at + OK_N / 2));
#endif
}
template <class C>
OK_FN void ok_store_part_complex(char* p, ok_cplx_of<C> z, i64 count) {
  if (count >= OK_N)
    ok_store_complex<C>(p, z);
  else
    ok_scatter_part_complex<C>(p, sizeof(C), z, count);
}
// One element, of a value that all lanes share.
template <class C>
OK_FN void ok_put_complex(char* p, ok_cplx_of<C> z) {
  ok_scatter_part_complex<C>(p, 0, z, 1);
}
// The rest of a row is padded to a whole step, as in nest.h.
template <class C>
OK_FN void ok_pad_complex(char* to, const char* from, i64 stride, i64 count, i64 total) {
  for (i64 i = 0; i < total; ++i) ((C*)to)[i] = *(const C*)(from + (i < count ? i : 0) * stride);
}
template <class C>
OK_FN void ok_unpad_complex(char* to, i64 stride, const char* from, i64 count) {
  for (i64 i = 0; i < count; ++i) *(C*)(to + i * stride) = ((const C*)from)[i];
}
