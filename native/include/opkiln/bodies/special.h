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

//@ erfcx : fma
// (1 + q) e^(z^2) erfc(z) for z in [0, 28] as (1 + q) (1 + u) / (k (1 + u) + 1 + v) with
// k + l = sqrt(pi) z, a rational minimax approximation of ours (mpmath): nothing cancels, and large
// z see little of the errors of u and v, so little of z's own beside k's.
template <class V>
OK_FN V ok_erfcx_(V z, V k, V l, V q) {
  V s = z * z, u, uo, v, vo;
#define OK_P(p, c) p = ok_fma(p, s, ok_c<V>(c));
  if constexpr (sizeof(ok_elt<V>) == 4) {
    u = ok_c<V>(0x1.e94058p-4f);
    OK_P(u, 0x1.21e2cap+0f)
    u = u * s;
    uo = ok_c<V>(0x1.ce86e2p-7f);
    OK_P(uo, 0x1.eef4cap-2f)
    OK_P(uo, 0x1.892138p+0f)
    u = ok_fma(uo, z, u);
    v = ok_c<V>(0x1.99f182p-7f);
    OK_P(v, 0x1.aa85bep-2f)
    v = v * s;
    vo = ok_c<V>(0x1.b16918p-4f);
    OK_P(vo, 0x1.c87e44p-1f)
    v = ok_fma(vo, z, v);
  } else {
    u = ok_c<V>(1.8430101892753784e-05);
    OK_P(u, 0.0040909129777366975)
    OK_P(u, 0.12969108188888567)
    OK_P(u, 1.149509218119605)
    OK_P(u, 2.839444460245238)
    u = u * s;
    uo = ok_c<V>(0.00039075743352303197);
    OK_P(uo, 0.027451059309252852)
    OK_P(uo, 0.44873068980277286)
    OK_P(uo, 2.154631674394677)
    OK_P(uo, 2.3960356091303954)
    u = ok_fma(uo, z, u);
    v = ok_c<V>(0.00034629975907879374);
    OK_P(v, 0.023981568515166883)
    OK_P(v, 0.3742152755096343)
    OK_P(v, 1.5694581276321826)
    v = v * s;
    vo = ok_c<V>(1.6333252534942903e-05);
    OK_P(vo, 0.0036091439676406347)
    OK_P(vo, 0.1113510750963124)
    OK_P(vo, 0.9127004813491897)
    OK_P(vo, 1.7519609253203925)
    v = ok_fma(vo, z, v);
  }
#undef OK_P
  V d = u + 1;
  return ok_fma(q, d, d) / (ok_fma(k, d, ok_fma(l, d, v)) + 1);
}

//@ erfc : erfcx exp_parts scale abs cap fma
// e^-t^2 erfcx(t), t = |x|, with the square as an unevaluated sum of two numbers; 2 less that.
template <class V>
OK_FN V ok_erfc(V x) {
  constexpr bool f = sizeof(ok_elt<V>) == 4;
  V t = ok_cap(ok_abs(x), f ? 10.5 : 28.0), s = t * t, n, l;
  V r = ok_exp_reduce_(-s, n, l);
  r = r + ok_fma(n, l, ok_fma(-t, t, s));
  V c = ok_c<V>(f ? 0x1.c5bf8ap+0f : 0x1.c5bf891b4ef6bp+0), k = t * c;
  V kl = ok_fma(t, c, -k) + t * ok_c<V>(f ? -0x1.c96212p-25f : -0x1.618f13eb7ca89p-54);
  V y = ok_scale(ok_erfcx_(t, k, kl, ok_exp_m1_(r)), n);
  return x < 0 ? 2 - y : y;
}

//@ gelu : erfcx exp_parts scale abs cap fma
// x times the normal distribution function: -t N(-t) where x is negative, t = |x|, else x - t N(-t)
// with N(-t) = e^(-t^2 / 2) erfcx(t / sqrt(2)) / 2.
template <class V>
OK_FN V ok_gelu(V x) {
  constexpr bool f = sizeof(ok_elt<V>) == 4;
  V t = ok_cap(ok_abs(x), f ? 14.75 : 39.5), h = t * 0.5f, s = t * h, n, l;
  V r = ok_exp_reduce_(-s, n, l);
  r = r + ok_fma(n, l, ok_fma(-t, h, s));
  V c = ok_c<V>(f ? 0x1.40d932p+0f : 0x1.40d931ff62706p+0), k = t * c;
  V kl = ok_fma(t, c, -k) + t * ok_c<V>(f ? -0x1.3b1f4ep-33f : -0x1.a6a0d6f814637p-54);
  V z = t * ok_c<V>(0.70710678118654752), y = ok_scale(ok_erfcx_(z, k, kl, ok_exp_m1_(r)) * h, n);
  return x >= 0 ? x - y : -y;
}

//@ expit : exp_parts scale abs cap
// 1 / (1 + e^-x), of negative x e^x / (1 + e^x).
template <class V>
OK_FN V ok_expit(V x) {
  V t = ok_cap(ok_abs(x), sizeof(ok_elt<V>) == 4 ? 105.0 : 746.0), n, r = ok_exp_reduce_(-t, n);
  V e = ok_scale(ok_exp_m1_(r) + 1, n);
  return (x < 0 ? e : ok_c<V>(1)) / (e + 1);
}

//@ gate : exp_parts scale
// x / (1 + e^(h + l)), h and l of the sign of -x: -y where x is negative, else x - y with
// y = t e^-|h + l| / (1 + e^-|h + l|), t = |x|, scaled last for the sake of subnormal results.
template <class V>
OK_FN V ok_gate_(V x, V t, V h, V l) {
  V n, c, r = ok_exp_reduce_(-h, n, c);
  r = r + ok_fma(n, c, -l);
  V q = ok_exp_m1_(r);
  V y = ok_scale(ok_fma(q, t, t) / (ok_scale(q + 1, n) + 1), n);
  return x >= 0 ? x - y : -y;
}

//@ silu : gate abs cap
// x / (1 + e^-x)
template <class V>
OK_FN V ok_silu(V x) {
  V t = ok_cap(ok_abs(x), sizeof(ok_elt<V>) == 4 ? 112.0 : 760.0);
  return ok_gate_(x, t, t, V{});
}

//@ gelu_tanh : gate abs cap fma
// x / (1 + e^-2u) with u = sqrt(2 / pi) (x + 0.044715 x^3), as an unevaluated sum of two numbers.
template <class V>
OK_FN V ok_gelu_tanh(V x) {
  constexpr bool f = sizeof(ok_elt<V>) == 4;
  V t = ok_cap(ok_abs(x), f ? 12.0 : 24.0), s = t * t, c, cl, k, kl;
  c = ok_c<V>(f ? 0x1.6e4e26p-5f : 0x1.6e4e26d4801f7p-5);
  cl = ok_c<V>(f ? 0x1.a9003ep-30f : 0x1.441355475a31ap-59);
  k = ok_c<V>(f ? 0x1.988454p+0f : 0x1.9884533d43651p+0);
  kl = ok_c<V>(f ? -0x1.857936p-25f : -0x1.cbc0d30ebfd15p-54);
  // w + wl = 1 + 0.044715 t^2, u + ul = 2 sqrt(2 / pi) t, and their product
  V p = c * s, pl = ok_fma(c, s, -p) + (c * ok_fma(t, t, -s) + cl * s);
  V w = p + 1, b = w - 1, wl = (1 - (w - b)) + (p - b) + pl;
  V u = k * t, ul = ok_fma(k, t, -u) + kl * t, h = u * w;
  return ok_gate_(x, t, h, ok_fma(u, w, -h) + (u * wl + ul * w));
}

//@ hard_swish : cap
// x clip(x + 3, 0, 6) / 6, whose limit at -inf is 0
template <class V>
OK_FN V ok_hard_swish(V x) {
  V t = ok_raise(x, -3.0);
  return ok_cap(t + 3, 6.0) * ok_c<V>(1.0 / 6) * t;
}

//@ relu : max
template <class V>
OK_FN V ok_relu(V x) {
  return ok_max(x, V{});
}

//@ atanh2 : fma
// 2 atanh(y / 2) for |y| <= 2/3: y + y^3 P(y^2), minimax polynomials of ours (mpmath).
template <class V>
OK_FN V ok_atanh2_(V y) {
  V s = y * y, p;
#define OK_P(c) p = ok_fma(p, s, ok_c<V>(c));
  if constexpr (sizeof(ok_elt<V>) == 4) {
    p = ok_c<V>(0x1.1eca78p-11f);
    OK_P(0x1.1ec038p-9f)
    OK_P(0x1.99d1ccp-7f)
    OK_P(0x1.555502p-4f)
  } else {
    p = ok_c<V>(8.112059764532257e-08);
    OK_P(1.591411113617623e-07)
    OK_P(9.235596285161875e-07)
    OK_P(4.05916639328613e-06)
    OK_P(1.8782412157093686e-05)
    OK_P(8.877804831762331e-05)
    OK_P(0.0004340278117045645)
    OK_P(0.0022321428553140742)
    OK_P(0.012500000000048729)
    OK_P(0.08333333333333288)
  }
#undef OK_P
  return ok_fma(y, s * p, y);
}

//@ softplus : atanh2 exp_parts scale abs cap
// log(1 + e^x) = max(x, 0) + log1p(e^-|x|); log1p(e) = 2 atanh(e / (2 + e)).
template <class V>
OK_FN V ok_softplus(V x) {
  V t = ok_cap(ok_abs(x), sizeof(ok_elt<V>) == 4 ? 105.0 : 746.0), n, r = ok_exp_reduce_(-t, n);
  V e = ok_scale(ok_exp_m1_(r) + 1, n), y = ok_atanh2_(e * (2 / (e + 2)));
  return x > 0 ? x + y : y;
}

//@ logit : atanh2 log abs fma
// log(p / (1 - p)); near 1/2, where that cancels, 2 atanh(2 p - 1), whose argument is exact.
template <class V>
OK_FN V ok_logit(V x) {
  V y = ok_fma(x, ok_c<V>(4), ok_c<V>(-2));
  return ok_abs(y) <= ok_c<V>(2.0 / 3) ? ok_atanh2_(y) : ok_log(x / (1 - x));
}

//@ erfinv : log any fma abs copysign
// x + x p(w) / q(w) with w = -log(1 - x^2): rational minimax approximations of ours (mpmath), whose
// coefficients are all positive but p(0)'s; of float64 one for w to 5, one to 14 and one beyond.
template <class V>
OK_FN V ok_erfinv_tail_(V w, V& q) {
  V u = w < 14 ? w - 5 : w - 14, p;
#define OK_P(b, c) p = ok_fma(p, u, w < 14 ? ok_c<V>(b) : ok_c<V>(c));
#define OK_Q(b, c) q = ok_fma(q, u, w < 14 ? ok_c<V>(b) : ok_c<V>(c));
  p = w < 14 ? ok_c<V>(5.938059556367504e-10) : ok_c<V>(5.856574598832239e-12);
  OK_P(9.698835626158307e-08, 3.1758650897759167e-09)
  OK_P(4.206902719998322e-06, 4.3171597396962774e-07)
  OK_P(0.00010025277316456143, 2.4132662362236645e-05)
  OK_P(0.0015678681743751697, 0.000709541809458418)
  OK_P(0.01711831267178802, 0.012541847215479036)
  OK_P(0.12341770762069262, 0.13787571665956258)
  OK_P(0.5570834348862692, 0.885869628375626)
  OK_P(1.07981276086783, 2.5790893236056287)
  q = w < 14 ? ok_c<V>(1.7477296002024777e-11) : ok_c<V>(9.550441793427745e-14);
  OK_Q(1.014293801564426e-08, 1.7654487202837277e-10)
  OK_Q(8.07301890749004e-07, 4.4624122698006807e-08)
  OK_Q(2.515315039522132e-05, 3.741569745236484e-06)
  OK_Q(0.0004937567336483043, 0.000143696882622784)
  OK_Q(0.006375328585655138, 0.003052405737730238)
  OK_Q(0.05808869972420996, 0.03915839103535501)
  OK_Q(0.31800044525413274, 0.29122063317210395)
  OK_Q(1.0, 1.0)
#undef OK_P
#undef OK_Q
  return p;
}
template <class V>
OK_FN V ok_erfinv(V x) {
  V a = ok_abs(x), inf = ok_c<V>(__builtin_inf()), w = -ok_log(ok_fma(-x, x, ok_c<V>(1))), p, q;
#define OK_P(c) p = ok_fma(p, w, ok_c<V>(c));
#define OK_Q(c) q = ok_fma(q, w, ok_c<V>(c));
  if constexpr (sizeof(ok_elt<V>) == 4) {
    p = ok_c<V>(0x1.786f9cp-24f);
    OK_P(0x1.1303c8p-15f)
    OK_P(0x1.12aaa2p-11f)
    OK_P(0x1.9da1acp-8f)
    OK_P(0x1.d99b08p-6f)
    OK_P(0x1.c5df7cp-3f)
    OK_P(-0x1.d203bp-4f)
    q = ok_c<V>(0x1.815dc6p-19f);
    OK_Q(0x1.d552a2p-13f)
    OK_Q(0x1.1b0ebap-9f)
    OK_Q(0x1.14b224p-5f)
    OK_Q(0x1.7645f2p-4f)
    OK_Q(0x1p+0f)
  } else {
    p = ok_c<V>(3.0170820826362744e-08);
    OK_P(9.271199633228717e-07)
    OK_P(1.6314604009654755e-05)
    OK_P(0.0001961492572529347)
    OK_P(0.0015272623942769322)
    OK_P(0.011878268462206137)
    OK_P(0.03575485275119216)
    OK_P(0.21692735322222714)
    OK_P(-0.11377307454724195)
    q = ok_c<V>(1.9517536664930805e-09);
    OK_Q(2.3636403445485132e-07)
    OK_Q(5.546191622568111e-06)
    OK_Q(7.95372895346938e-05)
    OK_Q(0.0010330323542161828)
    OK_Q(0.00610568379561236)
    OK_Q(0.05765431665668414)
    OK_Q(0.13260003188331262)
    OK_Q(1.0)
    if (__builtin_expect(ok_any(w >= 5), 0)) {
      V d, n = ok_erfinv_tail_(w, d);
      p = w >= 5 ? n : p;
      q = w >= 5 ? d : q;
    }
  }
#undef OK_P
#undef OK_Q
  return a == 1 ? x * inf : ok_copysign(ok_fma(a, p / q, a), x);
}
