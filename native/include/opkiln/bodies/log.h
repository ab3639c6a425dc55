//@ frexp : abs
// x = m * 2^e with m in [sqrt(1/2), sqrt(2)), e as a float. So that logarithms need no more care,
// e is -inf of 0, inf of infinity, and m or e is NaN of NaN and what is negative. kQuarter: |x|,
// and m in [3/4, 3/2), which AVX-512 finds at once.
template <bool kQuarter = false, class V>
OK_FN V ok_frexp_(V x, V& e) {
  typedef IVec<V> I;
  constexpr bool single = sizeof(ok_elt<V>) == 4;
#ifdef OK_AVX512
  if constexpr (sizeof(V) == 64) {
    V m;
    // 8: m in [1, 2), NaN of what is negative; 7: m of |x| in [3/4, 3/2).
    constexpr int form = kQuarter ? 7 : 8;
    if constexpr (single) {
      e = __builtin_ia32_getexpps512_mask(x, x, -1, 4);
      m = __builtin_ia32_getmantps512_mask(x, form, x, -1, 4);
    } else {
      e = __builtin_ia32_getexppd512_mask(x, x, -1, 4);
      m = __builtin_ia32_getmantpd512_mask(x, form, x, -1, 4);
    }
    if constexpr (kQuarter) {
      e = m < 1 ? e + 1 : e;
      return m;
    }
    I high = m >= ok_c<V>(single ? 0x1.6a09e6p0 : 0x1.6a09ep0);
    e = high ? e + 1 : e;
    return (V)(high ? (I)m - ((ok_elt<I>)1 << (single ? 23 : 52)) : (I)m);
  }
#endif
  V inf = ok_c<V>(__builtin_inf()), y;
  if constexpr (kQuarter) x = ok_abs(x);
  I tiny = x < ok_c<V>(single ? 0x1p-126 : 0x1p-1022), k;
  y = tiny ? x * ok_c<V>(single ? 0x1p24 : 0x1p54) : x;
  if constexpr (single) {
    k = ((I)y - (kQuarter ? 0x3f400000 : 0x3f3504f3)) >> 23;
    e = __builtin_convertvector(k, V) - (tiny ? ok_c<V>(24) : V{});
  } else {
    // Adding the bits of 1.5 * 2^52 turns a small integer into a float without a conversion,
    // which AVX2 lacks for 64 bits.
    k = ((I)y - (kQuarter ? 0x3fe8000000000000 : 0x3fe6a09e00000000)) >> 52;
    e = (V)(k + 0x4338000000000000) - (tiny ? ok_c<V>(0x1.8p52 + 54) : ok_c<V>(0x1.8p52));
  }
  e = ((x > 0) & (x < inf)) ? e : (x == 0 ? -inf : (x < 0 ? inf - inf : x));
  return (V)((I)y - (k << (single ? 23 : 52)));
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
// log 2 as an unevaluated sum; e times its first part is exact. The sum of that and of ok_log_low_
// is log(2^e (1 + f)). Both parts are positive, so that an infinite e stays.
template <class V>
constexpr ok_elt<V> ok_ln2_high = sizeof(ok_elt<V>) == 4 ? 0x1.62e4p-1 : 6.93147180369123816490e-01;
template <class V>
OK_FN V ok_log_low_(V e, V f) {
  constexpr bool s = sizeof(ok_elt<V>) == 4;
  return ok_logm_(f, e * ok_c<V>(s ? 0x1.7f7d1cp-20 : 1.90821492927058770002e-10));
}
template <class V>
OK_FN V ok_ln2_(V e, V f) {
  return ok_fma(e, ok_c<V>(ok_ln2_high<V>), ok_log_low_(e, f));
}

//@ log : frexp logm
// Natural logarithm.
template <class V>
OK_FN V ok_log(V x) {
  V e, m = ok_frexp_(x, e);
  return ok_ln2_(e, m - 1);
}

//@ log2 : frexp logm fma
// f32: a minimax polynomial of its own (mpmath) is shorter than a product with the logarithm.
template <class V>
OK_FN V ok_log2(V x) {
  V e, f = ok_frexp_(x, e) - 1, p;
  if constexpr (sizeof(ok_elt<V>) == 4) {
#define OK_P(c) p = ok_fma(p, f, ok_c<V>(c));
    p = ok_c<V>(-0x1.ce505ap-4f);
    OK_P(0x1.803ff4p-3f)
    OK_P(-0x1.86459p-3f)
    OK_P(0x1.a27a88p-3f)
    OK_P(-0x1.eaccb8p-3f)
    OK_P(0x1.27823p-2f)
    OK_P(-0x1.715a38p-2f)
    OK_P(0x1.ec7086p-2f)
    OK_P(-0x1.715472p-1f)
#undef OK_P
    return ok_fma(f, ok_c<V>(0x1.715476p+0f), p * (f * f)) + e;
  } else {
    V y = ok_logm_(f, V{});
    return ok_fma(y, ok_c<V>(0x1.71547652b82fep+0), ok_fma(y, ok_c<V>(0x1.777d0ffda0d24p-56), e));
  }
}

//@ log10 : frexp logm fma
// Both parts of log10(2) are positive, so that an infinite e stays.
template <class V>
OK_FN V ok_log10(V x) {
  V e, f = ok_frexp_(x, e) - 1, p;
  if constexpr (sizeof(ok_elt<V>) == 4) {
#define OK_P(c) p = ok_fma(p, f, ok_c<V>(c));
    p = ok_c<V>(0x1.3f6a6ep-5f);
    OK_P(-0x1.009f96p-4f)
    OK_P(0x1.08c3fep-4f)
    OK_P(-0x1.266fd6p-4f)
    OK_P(0x1.631fcap-4f)
    OK_P(-0x1.bcc37p-4f)
    OK_P(0x1.287bd4p-3f)
    OK_P(-0x1.bcb7a8p-3f)
#undef OK_P
    p = ok_fma(p, f * f, e * ok_c<V>(0x1.09f7ap-26f));
    p = ok_fma(f, ok_c<V>(0x1.bcb7b2p-2f), p);
    return ok_fma(e, ok_c<V>(0x1.344134p-2f), p);
  } else {
    V y = ok_logm_(f, V{});
    V lo = ok_fma(e, ok_c<V>(0x1.e623e2566b02ep-55), y * ok_c<V>(0x1.95355baaafad3p-57));
    p = ok_fma(y, ok_c<V>(0x1.bcb7b1526e50ep-2), lo);
    return ok_fma(e, ok_c<V>(0x1.34413509f79fep-2), p);
  }
}

//@ log1p : frexp logm scale abs copysign
// log(1 + x) = log(m) + e log 2 where what rounding 1 + x lost is put back into m.
template <class V>
OK_FN V ok_log1p(V x) {
  V u = x + 1, b = u - 1, c = (1 - (u - b)) + (x - b), e, m = ok_frexp_(u, e);
  c = ok_abs(e) < ok_c<V>(60) ? ok_scale(c, -e) : V{};
  return ok_copysign(ok_ln2_(e, (m - 1) + c), x);
}

//@ logaddexp : exp log1p abs
// log(e^x + e^y) = max + log1p(e^-|x - y|).
template <class V>
OK_FN V ok_logaddexp(V x, V y) {
  V d = x == y ? V{} : ok_abs(x - y);
  return (x > y ? x : y) + ok_log1p(ok_exp(-d));
}

//@ logaddexp2 : exp2 log1p abs
template <class V>
OK_FN V ok_logaddexp2(V x, V y) {
  V more = ok_log1p(ok_exp2(-ok_abs(x - y))), larger = x > y ? x : y;
  V r = ok_fma(more, ok_c<V>(1.4426950408889634), larger);
  return x == y ? x + 1 : r;  // exact, and right for infinities
}

//@ pow : frexp scale abs any_from cap fma round copysign
// |x|^y = 2^(y log2 |x|): log2 |x| and its product with y as unevaluated sums of two numbers, from
// the series in z = (m - 1) / (m + 1); polynomials of ours (mpmath), even and odd coefficients
// apart where that shortens the wait for them. Special cases as in C99.
template <class V>
OK_FN V ok_pow(V x, V y) {
  typedef ok_elt<V> T;
  constexpr bool single = sizeof(T) == 4;
  V e, m = ok_frexp_<true>(x, e);
  V f = m - 1, rc = 1 / (m + 1), z, zl, s, t, u, v, c, h, l, n, r, q;
  V two = ok_c<V>(single ? 0x1.715476p+1 : 0x1.71547652b82fep+1);
  V two_lo = ok_c<V>(single ? 0x1.4ae0cp-25 : 0x1.777d0ffda0d24p-55);
  // z + zl = f / (2 + f); f - 2 z is exact.
  z = f * rc;
  zl = ok_fma(-z, f, ok_fma(z, ok_c<V>(-2), f)) * rc;
  s = z * z;
#define OK_P(c) t = ok_fma(t, r, ok_c<V>(c));
#define OK_Q(c) u = ok_fma(u, r, ok_c<V>(c));
  // log2 |x| = e + q + v and some more, l: q is z two, v is z^3 (2 / (3 log(2)) + s t), of f32 with
  // what two lacks.
  q = z * two;
  l = ok_fma(z, two, -q);
  if constexpr (single) {
    r = s;
    t = ok_c<V>(0x1.64038p-2f);
    OK_P(0x1.a5242ep-2f)
    OK_P(0x1.277866p-1f)
    OK_P(0x1.ec709cp-1f)
    u = ok_fma(s, t, two_lo);
    v = z * u;
    l = ok_fma(z * t, ok_fma(z, z, -s), l) + ok_fma(z, u, -v);
  } else {
    r = s * s;
    t = ok_c<V>(0.16724302686792622);
    u = ok_c<V>(0.181363738838659);
    OK_P(0.22195007351563165)
    OK_Q(0.19247198358820172)
    OK_P(0.32059889752883325)
    OK_Q(0.26230823746469595)
    OK_P(0.5770780163555814)
    OK_Q(0.4121985831132764)
    t = ok_fma(u, s, t);
    // u + ul, w + wl = z^3 and their product v + vl.
    V third = ok_c<V>(0x1.ec709dc3a03fdp-1), st = s * t, w = s * z, wl, ul;
    u = third + st;
    ul = (third - u) + (st + ok_c<V>(0x1.d27f05548af0cp-55));
    wl = ok_fma(ok_fma(z, z, -s), z, ok_fma(s, z, -w));
    v = w * u;
    l = ok_fma(z, two_lo, l) + ok_fma(w, ul, ok_fma(wl, u, ok_fma(w, u, -v)));
    u = s * u;
  }
  c = e + q;
  h = c + v;
  l = ok_fma(zl, ok_fma(u, ok_c<V>(3), two), l) + (((e - c) + q) + ((c - h) + v));
  // q + l = y log2 |x|. Where x < 0 or the power of two is 0, infinite or nearly so, more is to do.
  q = y * h;
  l = ok_fma(y, l, ok_fma(y, h, -q));
  typedef UVec<V> U;
  constexpr ok_elt<U> limit = single ? 0x43000000 : 0x4090000000000000;  // 128, 1024
  const bool rare = ok_any_from((U)ok_copysign(q, x), limit);
  if (__builtin_expect(rare, 0)) {
    V p = ok_raise(ok_cap(q, single ? 129.0 : 1025.0), single ? -151.0 : -1076.0);
    l = p == q ? l : V{};
    q = p;
  }
  n = ok_rint(q);
  q = (q - n) + l;
  r = q * q;
  if constexpr (single) {
    u = ok_c<V>(0x1.3f906cp-13f);
    t = ok_c<V>(0x1.5f0a66p-10f);
    OK_Q(0x1.3b30bp-7f)
    OK_P(0x1.c6af78p-5f)
    OK_Q(0x1.ebfbd8p-3f)
    OK_P(0x1.62e43p-1f)
  } else {
    t = ok_c<V>(4.4499554277714775e-10);
    u = ok_c<V>(7.073826046257378e-09);
    OK_P(1.0178086773976161e-07)
    OK_Q(1.3215435001111045e-06)
    OK_P(1.5252733805507874e-05)
    OK_Q(0.00015403530457765014)
    OK_P(0.0013333558146380658)
    OK_Q(0.009618129107593498)
    OK_P(0.05550410866482226)
    OK_Q(0.24022650695910133)
    OK_P(0.6931471805599453)
  }
#undef OK_P
#undef OK_Q
  t = ok_scale(ok_fma(ok_fma(u, q, t), q, ok_c<V>(1)), n);
  // Signs, and where 1 comes of 0 times infinity or NaN.
  if (__builtin_expect(rare, 0)) {
    V a = ok_abs(x), half = y * ok_c<V>(0.5), inf = ok_c<V>(__builtin_inf());
    IVec<V> whole = ok_rint(y) == y, odd = whole & (ok_rint(half) != half);
    IVec<V> sign = (IVec<V>)x & odd & ((ok_elt<IVec<V>>)1 << (8 * sizeof(T) - 1));
    t = ((x < 0) & ~whole & (a < inf)) ? inf - inf : (V)((IVec<V>)t ^ sign);
    t = ((x == 1) | (y == 0) | ((a == 1) & (ok_abs(y) == inf))) ? ok_c<V>(1) : t;
  }
  return t;
}
