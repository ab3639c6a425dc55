//@ sinpi : fma
// sin(pi r) / (pi r) for s = r^2 <= 1/4: a minimax polynomial of ours (mpmath).
template <class V>
OK_FN V ok_sinc_(V s) {
  V p;
#define OK_P(c) p = ok_fma(p, s, ok_c<V>(c));
  if constexpr (sizeof(ok_elt<V>) == 4) {
    p = ok_c<V>(-0x1.2267c8p-9f);
    OK_P(0x1.abb37ap-6f)
    OK_P(-0x1.86a584p-3f)
    OK_P(0x1.9f9ca6p-1f)
    OK_P(-0x1.a51a66p+0f)
    OK_P(1)
  } else {
    p = ok_c<V>(2.451846566839194e-07);
    OK_P(-6.972268493456095e-06)
    OK_P(0.0001484279169729214)
    OK_P(-0.0023460809133554706)
    OK_P(0.02614784780794777)
    OK_P(-0.1907518241216755)
    OK_P(0.8117424252833462)
    OK_P(-1.6449340668482264)
    OK_P(1)
  }
#undef OK_P
  return p;
}

//@ sinc : sinpi abs round
// sin(pi x) / (pi x) as +-r / x (sin(pi r) / (pi r)), r the distance to the nearest integer.
template <class V>
OK_FN V ok_sinc(V x) {
  V n = ok_rint(x), r = x - n, s = ok_sinc_(r * r);
  r = ok_rint(n * 0.5f) * 2 != n ? -r : r;
  return ok_abs(x) <= ok_c<V>(0.5) ? s : r * s / x;
}

//@ lgamma_near : fma
// log Gamma(x) / ((x - 1) (x - 2)) less 11/32, which halves the weight of rounding, for
// u = x - 1/2 in [0, 5/2] as p / q: a rational minimax approximation of ours (mpmath).
template <class V>
OK_FN V ok_lgamma_near_(V u, V& q) {
  V p;
#define OK_P(c) p = ok_fma(p, u, ok_c<V>(c));
#define OK_Q(c) q = ok_fma(q, u, ok_c<V>(c));
  if constexpr (sizeof(ok_elt<V>) == 4) {
    p = ok_c<V>(-0x1.4aa05p-7f);
    OK_P(-0x1.eb9bb4p-4f)
    OK_P(-0x1.bec27ep-4f)
    OK_P(0x1.6ce59ap-1f)
    OK_P(0x1.24069ep+0f)
    OK_P(0x1.ad780cp-2f)
    q = ok_c<V>(0x1.fd684p-6f);
    OK_Q(0x1.3e6976p-1f)
    OK_Q(0x1.905d3cp+1f)
    OK_Q(0x1.6ccda6p+2f)
    OK_Q(0x1.0706fcp+2f)
    OK_Q(0x1p+0f)
  } else {
    p = ok_c<V>(-0.0001720090178382902);
    OK_P(-0.008553305720088937)
    OK_P(-0.10504295790959665)
    OK_P(-0.4209114889912351)
    OK_P(-0.2206249344884361)
    OK_P(2.231572156488016)
    OK_P(5.561746427268654)
    OK_P(5.477100968749745)
    OK_P(2.4661817385012244)
    OK_P(0.4194032572329334)
    q = ok_c<V>(0.0005109492027590606);
    OK_Q(0.030887896435894145)
    OK_Q(0.5320829953019628)
    OK_Q(3.8896790854085688)
    OK_Q(14.310577414637555)
    OK_Q(28.873777900945893)
    OK_Q(33.13485659806305)
    OK_Q(21.452651644318898)
    OK_Q(7.270138467749605)
    OK_Q(1.0)
  }
#undef OK_P
#undef OK_Q
  return p;
}
// What Stirling's formula lacks, times x, for z = 1 / x^2 <= 1/9.
template <class V>
OK_FN V ok_stirling_(V z) {
  V p;
#define OK_P(c) p = ok_fma(p, z, ok_c<V>(c));
  if constexpr (sizeof(ok_elt<V>) == 4) {
    p = ok_c<V>(-0x1.ac428ap-12f);
    OK_P(0x1.964884p-11f)
    OK_P(-0x1.6bfb2p-9f)
    OK_P(0x1.555552p-4f)
  } else {
    p = ok_c<V>(0.18122055566605766);
    OK_P(-0.15832945158716022)
    OK_P(0.06860494734121389)
    OK_P(-0.021149566487619235)
    OK_P(0.0059213757839774814)
    OK_P(-0.0018968314971847093)
    OK_P(0.0008411423334779523)
    OK_P(-0.0005952263343654258)
    OK_P(0.0007936506561516199)
    OK_P(-0.0027777777769393314)
    OK_P(0.08333333333333144)
  }
#undef OK_P
  return p;
}

//@ lgamma : lgamma_near sinpi frexp logm log abs any round fma
// log |Gamma(x)|. Of a = |x|: below 1/2 log Gamma(1 + x) - log a, to 3 a rational approximation
// with its zeros, beyond Stirling's formula. Of negative x by reflection,
// -log(a |sin(pi a)| / pi) - log Gamma(a).
template <class V>
OK_FN V ok_lgamma(V x) {
  V a = ok_abs(x), e, m = ok_frexp_(a, e), inf = ok_c<V>(__builtin_inf()), q, p, y;
  // h + l = log a
  V h = e * ok_ln2_high<V>, l = ok_log_low_(e, m - 1);
  IVec<V> small = a < ok_c<V>(0.5), far = a >= 3;
  p = ok_lgamma_near_(small ? x + 0.5f : a - 0.5f, q);
  V i = (far ? ok_c<V>(1) : p) / (far ? a : q);
  V b = a - 0.5f, c = ok_fma(ok_stirling_(i * i), i, ok_c<V>(0.41893853320467274));
  y = small ? x * (x - 1) : (a - 1) * (a - 2);
  y = ok_fma(y, i, y * 0.34375f) + 0;  // log 1 is 0.0, not -0.0
  y = small ? y - l - h : (far ? ok_fma(b, h - 1, ok_fma(b, l, c)) : y);
  if (__builtin_expect(ok_any(x <= ok_c<V>(-0.5)), 0)) {
    V r = a - ok_rint(a), w = a * ok_abs(r) * ok_sinc_(r * r);
    V z = w == 0 ? inf : -ok_log(w) - y;
    y = x <= ok_c<V>(-0.5) ? z : y;
  }
  return a == 0 ? inf : (a == inf ? a : y);
}

//@ digamma_near : fma
// digamma(x) / (x - x0) less 1/2, x0 its zero, for u = x - 1/2 in [0, 5/2] as p / q.
template <class V>
OK_FN V ok_digamma_near_(V u, V& q) {
  V p;
#define OK_P(c) p = ok_fma(p, u, ok_c<V>(c));
#define OK_Q(c) q = ok_fma(q, u, ok_c<V>(c));
  if constexpr (sizeof(ok_elt<V>) == 4) {
    p = ok_c<V>(-0x1.f92e62p-7f);
    OK_P(-0x1.3e7cc8p-3f)
    OK_P(0x1.a2d508p-4f)
    OK_P(0x1.aa7f34p+0f)
    OK_P(0x1.8ab6c8p+0f)
    q = ok_c<V>(0x1.083a5ep-5f);
    OK_Q(0x1.1ed8a8p-1f)
    OK_Q(0x1.2af058p+1f)
    OK_Q(0x1.840da4p+1f)
    OK_Q(0x1p+0f)
  } else {
    p = ok_c<V>(-2.0171840186992184e-05);
    OK_P(-0.0012371984544489042)
    OK_P(-0.01919833486709853)
    OK_P(-0.09294833256616979)
    OK_P(0.015669857042238076)
    OK_P(1.1412305042039053)
    OK_P(2.534937921749278)
    OK_P(1.541851487905516)
    q = ok_c<V>(4.085257829740709e-05);
    OK_Q(0.0028975946271878527)
    OK_Q(0.05932803610868391)
    OK_Q(0.5086407276879807)
    OK_Q(2.0767322096129317)
    OK_Q(4.1089057749940086)
    OK_Q(3.5952318352518784)
    OK_Q(1.0)
  }
#undef OK_P
#undef OK_Q
  return p;
}
// (log x - 1 / (2 x) - digamma(x)) x^2 for z = 1 / x^2 <= 1/9.
template <class V>
OK_FN V ok_digamma_far_(V z) {
  V p;
#define OK_P(c) p = ok_fma(p, z, ok_c<V>(c));
  if constexpr (sizeof(ok_elt<V>) == 4) {
    p = ok_c<V>(0x1.d78c74p-9f);
    OK_P(-0x1.eb9c68p-9f)
    OK_P(0x1.0296fcp-8f)
    OK_P(-0x1.110c4cp-7f)
    OK_P(0x1.555554p-4f)
  } else {
    p = ok_c<V>(-14.924139409360341);
    OK_P(13.074085132582896)
    OK_P(-5.505012713873987)
    OK_P(1.5483715932106317)
    OK_P(-0.35377321273424694)
    OK_P(0.07923666719291081)
    OK_P(-0.020955449268568495)
    OK_P(0.007572540365337006)
    OK_P(-0.00416661700070663)
    OK_P(0.003968253505330697)
    OK_P(-0.008333333331100465)
    OK_P(0.08333333333332942)
  }
#undef OK_P
  return p;
}

// pi r / tan(pi r) for s = r^2 <= 1/4
template <class V>
OK_FN V ok_turn_(V s) {
  V p;
#define OK_P(c) p = ok_fma(p, s, ok_c<V>(c));
  if constexpr (sizeof(ok_elt<V>) == 4) {
    p = ok_c<V>(-0x1.87f87ap+2f);
    OK_P(0x1.61ff26p-5f)
    OK_P(-0x1.3d1ed6p+1f)
    OK_P(-0x1.f318cp+0f)
    OK_P(-0x1.04ecb2p+1f)
    OK_P(-0x1.150f5ep+1f)
    OK_P(-0x1.a51a7p+1f)
    OK_P(1)
  } else {
    p = ok_c<V>(-18.484548022357053);
    OK_P(18.558730176932738)
    OK_P(-15.077609654435415)
    OK_P(3.224598416055839)
    OK_P(-3.4254282378177336)
    OK_P(-1.7234911269322495)
    OK_P(-2.038856011140755)
    OK_P(-1.9960604881852597)
    OK_P(-2.0004154864690022)
    OK_P(-2.0004768503970487)
    OK_P(-2.001989699599768)
    OK_P(-2.0081546996016955)
    OK_P(-2.0346861241460266)
    OK_P(-2.164646467421035)
    OK_P(-3.289868133696456)
    OK_P(1)
  }
#undef OK_P
  return p;
}

//@ digamma : digamma_near frexp logm abs any round fma
// The derivative of log |Gamma(x)|, of y = |x| and more as in ok_lgamma. Below 1/2
// digamma(1 + x) - 1 / x; from -1/4 down, where 1 + x rounds, digamma(1 - x) - pi / tan(pi x).
template <class V>
OK_FN V ok_digamma(V x) {
  constexpr bool f = sizeof(ok_elt<V>) == 4;
  V a = ok_abs(x), inf = ok_c<V>(__builtin_inf()), q, p, e;
  IVec<V> minus = x <= ok_c<V>(-0.25), small = (a < ok_c<V>(0.5)) & ~minus;
  V y = small ? x + 1 : (minus ? 1 - x : x), m = ok_frexp_(y, e);
  IVec<V> far = y >= 3;
  p = ok_digamma_near_(y - 0.5f, q);
  V i = (far ? ok_c<V>(1) : p) / (far ? y : q), z = i * i;
  V h = e * ok_ln2_high<V>, l = ok_log_low_(e, m - 1);
  V zero = (y - ok_c<V>(f ? 0x1.762d860000000p+0 : 0x1.762d86356be3fp+0)) -
           ok_c<V>(f ? 0x1.ab5f200000000p-27 : 0x1.b86a722197829p-54);
  V d = far ? h + (l - ok_fma(z, ok_digamma_far_(z), i * 0.5f)) : ok_fma(zero, i, zero * 0.5f);
  d = y == inf ? y : d;
  if (__builtin_expect(ok_any(x < ok_c<V>(0.5)), 0)) {
    V r = a - ok_rint(a), t = (small ? ok_c<V>(-1) : ok_turn_(r * r)) / (small ? x : r);
    d = (small | minus) ? d + t : d;
    d = (minus & (r == 0)) ? inf - inf : d;
  }
  return d;
}

//@ trigamma_near : fma
// The derivative of digamma(x) less 3/8 for u = x - 1/2 in [0, 5/2] as p / q.
template <class V>
OK_FN V ok_trigamma_near_(V u, V& q) {
  V p;
#define OK_P(c) p = ok_fma(p, u, ok_c<V>(c));
#define OK_Q(c) q = ok_fma(q, u, ok_c<V>(c));
  if constexpr (sizeof(ok_elt<V>) == 4) {
    p = ok_c<V>(-0x1.35b2cep+0f);
    OK_P(-0x1.14273ap-1f)
    OK_P(0x1.6bc816p+2f)
    OK_P(0x1.2647d6p+3f)
    OK_P(0x1.23d3ccp+2f)
    q = ok_c<V>(0x1.9cf63p+1f);
    OK_Q(0x1.413cbp+3f)
    OK_Q(0x1.7427fep+3f)
    OK_Q(0x1.6d47a8p+2f)
    OK_Q(0x1p+0f)
  } else {
    p = ok_c<V>(-0.024739103819786397);
    OK_P(-0.24601644662933178)
    OK_P(-0.876458750125931)
    OK_P(-0.6940993470532666)
    OK_P(4.164368725211089)
    OK_P(14.531796230875022)
    OK_P(21.018570113230215)
    OK_P(15.13449927272019)
    OK_P(4.559802200544679)
    q = ok_c<V>(0.06597094369319996);
    OK_Q(0.831966368627728)
    OK_Q(4.555800405256591)
    OK_Q(13.985071525470676)
    OK_Q(26.003666830675993)
    OK_Q(29.58433857924164)
    OK_Q(19.799214716969765)
    OK_Q(7.0097987831876605)
    OK_Q(1.0)
  }
#undef OK_P
#undef OK_Q
  return p;
}
// (trigamma(x) - 1 / x - 1 / (2 x^2)) x^3 for z = 1 / x^2 <= 1/9.
template <class V>
OK_FN V ok_trigamma_far_(V z) {
  V p;
#define OK_P(c) p = ok_fma(p, z, ok_c<V>(c));
  if constexpr (sizeof(ok_elt<V>) == 4) {
    p = ok_c<V>(0x1.1473eap-5f);
    OK_P(-0x1.e27ddp-6f)
    OK_P(0x1.831ccep-6f)
    OK_P(-0x1.110914p-5f)
    OK_P(0x1.555552p-3f)
  } else {
    p = ok_c<V>(1658.274928968237);
    OK_P(-1468.3432645579092)
    OK_P(613.9748845291148)
    OK_P(-165.45959854061215)
    OK_P(33.8599225915322)
    OK_P(-6.091450086683762)
    OK_P(1.1302037243898166)
    OK_P(-0.25213985790010657)
    OK_P(0.07573942518048588)
    OK_P(-0.03333311141533942)
    OK_P(0.023809522188986704)
    OK_P(-0.03333333332733277)
    OK_P(0.16666666666665889)
  }
#undef OK_P
  return p;
}

// (pi r / sin(pi r))^2 for s = r^2 <= 1/4
template <class V>
OK_FN V ok_turn2_(V s) {
  V p;
#define OK_P(c) p = ok_fma(p, s, ok_c<V>(c));
  if constexpr (sizeof(ok_elt<V>) == 4) {
    p = ok_c<V>(0x1.e3ce3p+6f);
    OK_P(-0x1.a61b4ep+4f)
    OK_P(0x1.2320c8p+5f)
    OK_P(0x1.fac058p+3f)
    OK_P(0x1.c7d444p+3f)
    OK_P(0x1.454514p+3f)
    OK_P(0x1.9f9fe2p+2f)
    OK_P(0x1.a51a5ap+1f)
    OK_P(1)
  } else {
    p = ok_c<V>(905.9259208354765);
    OK_P(-1154.6126453455252)
    OK_P(952.0430395541009)
    OK_P(-361.92207005563967)
    OK_P(183.9838695747376)
    OK_P(14.732742116101972)
    OK_P(47.41290513422551)
    OK_P(37.297327316838434)
    OK_P(34.068641048544144)
    OK_P(29.995475464003395)
    OK_P(26.00185879029557)
    OK_P(22.005403701336128)
    OK_P(18.01790262179904)
    OK_P(14.057082982147383)
    OK_P(10.173430619891262)
    OK_P(6.493939402266595)
    OK_P(3.2898681336964533)
    OK_P(1)
  }
#undef OK_P
  return p;
}

//@ trigamma : trigamma_near abs any round fma
// The derivative of digamma. Below 1/2 trigamma(1 + x) + 1 / x^2, further below
// (pi / sin(pi x))^2 - trigamma(1 - x).
template <class V>
OK_FN V ok_trigamma(V x) {
  V a = ok_abs(x), q, p;
  IVec<V> small = a < ok_c<V>(0.5), minus = x <= ok_c<V>(-0.5);
  V y = small ? x + 1 : (minus ? 1 - x : x);
  IVec<V> far = y >= 3;
  p = ok_trigamma_near_(y - 0.5f, q);
  V i = (far ? ok_c<V>(1) : p) / (far ? y : q), z = i * i;
  V d = far ? ok_fma(z, ok_fma(i, ok_trigamma_far_(z), ok_c<V>(0.5)), i) : i + 0.375f;
  if (__builtin_expect(ok_any(x < ok_c<V>(0.5)), 0)) {
    V r = small ? x : a - ok_rint(a), t = (small ? ok_c<V>(1) : ok_turn2_(r * r)) / r / r;
    d = small ? t + d : (minus ? t - d : d);
  }
  return d;
}
