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
