//@ quarter : any fma
// y = k pi/2 + r + lo with |r| about pi/4 or less, for y >= 0. Large arguments (Payne and Hanek):
// 192 bits of 1/pi, by lane. Where `fine`, lo holds what rounding r lost.
template <class T, class I>
OK_COLD void ok_pi_big_(const T* y, T* r, T* l, I* k) {
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
    f64 c = a + b, u = c * 0x1.921fb54442d18p+1;
    b = a - c + b;
    b = __builtin_fma(c, 0x1.921fb54442d18p+1, -u) +
        (c * 0x1.1a62633145c07p-53 + b * 0x1.921fb54442d18p+1);
    f64 v = u + b, scale = minus ? -0x1p-63 : 0x1p-63;
    r[i] = (T)(v * scale);
    l[i] = (T)((v * scale - r[i]) + (u - v + b) * scale);
  }
}
template <bool fine, class V>
OK_FN V ok_quarter_(V y, V& lo, IVec<V>& k) {
  typedef ok_elt<V> T;
  V n, r, w, whole, second;
  if constexpr (sizeof(T) == 4) {
    n = ok_fma(y, ok_c<V>(0.636619772f), ok_c<V>(0x1.8p23f));
    k = (IVec<V>)n;
    n = n - 0x1.8p23f;
    whole = ok_fma(n, ok_c<V>(-0x1.921fb4p+0f), y);
    second = ok_c<V>(-0x1.4442dp-24f);
    lo = n * ok_c<V>(-0x1.846988p-48f);
  } else {
    n = ok_fma(y, ok_c<V>(0.6366197723675814), ok_c<V>(0x1.8p52));
    k = (IVec<V>)n;
    n = n - 0x1.8p52;
    whole = ok_fma(n, ok_c<V>(-0x1.921fb54442d18p+0), y);
    second = ok_c<V>(-0x1.1a62633145c06p-54);
    lo = n * ok_c<V>(-0x1.c1cd129024e08p-107);
  }
  if constexpr (fine) {
    w = n * second;
    r = whole + w;
    lo = lo + (ok_fma(n, second, -w) + ((whole - r) + w));
  } else {
    r = ok_fma(n, second, whole);
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
  return r;
}

//@ sincos : quarter abs fma
// Sine and cosine of what is left by minimax polynomials of ours (mpmath).
template <bool cosine, class V>
OK_FN V ok_sincos_(V x) {
  typedef ok_elt<V> T;
  IVec<V> k;
  V lo, r = ok_quarter_<false>(ok_abs(x), lo, k), s = r * r, p, q;
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

//@ tan : quarter abs fma
// Minimax polynomial of ours (mpmath) for what is left, up to 0.83 in f32 (2 / pi is rounded); odd
// quadrants take -1 / tan.
template <class V>
OK_FN V ok_tan(V x) {
  typedef ok_elt<V> T;
  IVec<V> k;
  V lo, r = ok_quarter_<true>(ok_abs(x), lo, k), s = r * r, p;
#define OK_P(c) p = ok_fma(p, s, ok_c<V>(c));
  if constexpr (sizeof(T) == 4) {
    p = ok_c<V>(0x1.4a7204p-8f);
    OK_P(-0x1.54704ep-10f)
    OK_P(0x1.87ec26p-7f)
    OK_P(0x1.5565eap-6f)
    OK_P(0x1.bb94bp-5f)
    OK_P(0x1.110966p-3f)
    OK_P(0x1.55557p-2f)
  } else {
    p = ok_c<V>(2.087217341896409e-05);
    OK_P(-4.4913436704642224e-05)
    OK_P(8.952024834729229e-05)
    OK_P(-2.645954002090013e-05)
    OK_P(0.00013657713464079556)
    OK_P(0.00022235505915118117)
    OK_P(0.0005950730065704779)
    OK_P(0.0014547560395363585)
    OK_P(0.0035922893900577437)
    OK_P(0.008863219130375948)
    OK_P(0.021869489611365787)
    OK_P(0.05396825392657077)
    OK_P(0.13333333333414824)
    OK_P(0.33333333333332776)
  }
#undef OK_P
  p = ok_fma(p, r * s, ok_fma(s, lo, lo)) + r;
  constexpr ok_elt<IVec<V>> top = (ok_elt<IVec<V>>)1 << (8 * sizeof(T) - 1);
  return (V)((IVec<V>)((k & 1) != 0 ? -1 / p : p) ^ ((IVec<V>)x & top));
}
