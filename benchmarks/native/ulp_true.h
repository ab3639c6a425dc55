// True values of the functions that the C library lacks, for ulp.cpp: each one text over R, which
// is `Real` (float64, one or eight of them) to measure float32 and long double to measure float64.
// The library's own are true_exp, true_log ... for both.

template <class R>
R number(long double c) {
  if constexpr (std::is_same_v<R, long double>)
    return c;
  else
    return R{} + double(c);
}

template <class R>
R magnitude(R x) {
  return x < 0 ? -x : x;
}

// Whether a condition holds for any lane: consecutive inputs mostly lie in one region.
template <class M>
bool any(M mask) {
  if constexpr (std::is_same_v<M, bool>) {
    return mask;
  } else {
    auto found = mask[0];
    for (size_t i = 1; i < sizeof mask / sizeof found; i++) found |= mask[i];
    return found;
  }
}

inline double nearest(double x) { return std::nearbyint(x); }
inline long double nearest(long double x) { return nearbyintl(x); }
#ifdef OK_MVEC
inline Real nearest(Real x) {
  for (int i = 0; i < 8; i++) x[i] = std::nearbyint(x[i]);
  return x;
}
#endif

constexpr long double kPi = 3.14159265358979323846264338327950288L;

// sin(pi r) for r the distance to the nearest integer
template <class R>
R sine(R r) {
  return true_sin(r * number<R>(kPi));
}

// c[0] + c[1] z + c[2] z^2 + ...
template <class R, size_t N>
R series(const std::array<long double, N>& c, R z) {
  R p = number<R>(c[N - 1]);
  for (size_t k = N - 1; k-- > 0;) p = p * z + number<R>(c[k]);
  return p;
}

// The sum of (n + a)^-s over all n >= 0 by the formula of Euler and Maclaurin.
inline long double zeta(int s, long double a) {
  long double w = a + 1000, sum = 0;
  for (int n = 999; n >= 0; n--) sum += powl(a + n, -s);
  long double t = powl(w, -s), u = t / w;
  return sum + t * w / (s - 1) + t / 2 + u * s / 12 - u / w / w * s * (s + 1) * (s + 2) / 720;
}

// The zero of digamma, as a sum of two numbers.
constexpr long double kZero = 1.4616321449683622, kZeroLow = 9.549995429965697e-17;

// lgamma(2 + z) / z, digamma(kZero + z) / z, and what Stirling's formula and its derivatives lack.
const auto kGammaNear = [] {
  std::array<long double, 36> c{0.422784335098467139393487909917597569L};
  for (int k = 1; k < 36; k++) c[k] = zeta(k + 1, 2) / (k % 2 ? k + 1 : -k - 1);
  return c;
}();
const auto kDigammaNear = [] {
  std::array<long double, 28> c;
  for (int k = 0; k < 28; k++) c[k] = zeta(k + 2, kZero + kZeroLow) * (k % 2 ? -1 : 1);
  return c;
}();
constexpr std::array<long double, 10> kBernoulli{
    1.0L / 6,       -1.0L / 30, 1.0L / 42,      -1.0L / 30,     5.0L / 66,
    -691.0L / 2730, 7.0L / 6,   -3617.0L / 510, 43867.0L / 798, -174611.0L / 330};
const auto kGammaFar = [] {
  auto c = kBernoulli;
  for (int k = 0; k < 10; k++) c[k] /= (2 * k + 2) * (2 * k + 1);
  return c;
}();
const auto kDigammaFar = [] {
  auto c = kBernoulli;
  for (int k = 0; k < 10; k++) c[k] /= 2 * k + 2;
  return c;
}();

// Beyond 16 Stirling's formula holds to 1e-23; smaller x rise by 16.
template <class R>
R raised(R x) {
  return x < 16 ? x + 16 : x;
}

template <class R>
R lgamma_above(R x) {
  constexpr long double half_log = 0.918938533204672741780329736405617640L;  // log(2 pi) / 2
  R y = raised(x), far = (y - 0.5) * (true_log(y) - 1) + number<R>(half_log - 0.5L) +
                         series(kGammaFar, 1 / (y * y)) / y;
  if (any(x < 16)) {
    R product = x;
    for (int i = 1; i < 16; i++) product = product * (x + i);
    far = x < 16 ? far - true_log(product) : far;
  }
  if (!any(magnitude(x - 1.5) <= 1)) return far;
  R z = x < 1.5 ? x - 1 : x - 2, near = z * series(kGammaNear, z);
  near = x < 1.5 ? near - true_log1p(z) : near;
  return magnitude(x - 1.5) <= 1 ? near : far;
}

template <class R>
R true_lgamma(R x) {
  R a = magnitude(x), above = lgamma_above(a);
  if (!any(x < 0)) return above;
  R w = a * magnitude(sine(a - nearest(a))) * number<R>(1 / kPi);
  R below = w > 0 ? -true_log(w) - above : number<R>(INFINITY);
  return x < 0 ? below : above;
}

template <class R>
R digamma_above(R x) {
  R y = raised(x), z = 1 / (y * y), far = true_log(y) - 0.5 / y - z * series(kDigammaFar, z);
  if (any(x < 16)) {
    R sum{};
    for (int i = 15; i >= 0; i--) sum = sum + 1 / (x + i);
    far = x < 16 ? far - sum : far;
  }
  R d = (x - number<R>(kZero)) - number<R>(kZeroLow);
  if (!any(magnitude(d) < 0.25)) return far;
  return magnitude(d) < 0.25 ? d * series(kDigammaNear, d) : far;
}

template <class R>
R true_digamma(R x) {
  R above = digamma_above(x < 0 ? 1 - x : x);
  above = x == 0 ? -1 / x : above;  // the sign of the zero decides
  if (!any(x < 0)) return above;
  R r = x - nearest(x), pi = number<R>(kPi), below = above - pi / true_tan(pi * r);
  below = r == 0 ? r / r : below;
  return x < 0 ? below : above;
}

template <class R>
R trigamma_above(R x) {
  R y = raised(x), sum{}, z = 1 / (y * y), far = (1 + z * series(kBernoulli, z)) / y + z * 0.5;
  if (!any(x < 16)) return far;
  for (int i = 15; i >= 0; i--) sum = sum + 1 / ((x + i) * (x + i));
  return x < 16 ? far + sum : far;
}

template <class R>
R true_trigamma(R x) {
  R above = trigamma_above(x < 0 ? 1 - x : x);
  if (!any(x < 0)) return above;
  R t = number<R>(kPi) / sine(x - nearest(x));
  return x < 0 ? t * t - above : above;
}

// From Winitzki's approximation by Halley's steps on erf or, near 1, on erfc.
template <class R>
R true_erfinv(R x) {
  R a = magnitude(x);
  if (!any(a <= 1)) return number<R>(NAN);
  R c = 1 - a, log = true_log1p(-a * a), h = log * 0.5 + number<R>(4.33);
  R s = log * number<R>(-1 / 0.147L);
  R square = s / (h + true_sqrt(h * h + s)), y = true_sqrt(square);
  for (int i = 0; i < 3; i++) {
    R off = a < 0.5 ? true_erf(y) - a : c - true_erfc(y);
    R step = off * number<R>(0.886226925452758013649083741670572591L) * true_exp(y * y);
    y = y - step / (1 + y * step);
  }
  y = a == 1 ? number<R>(INFINITY) : y;
  return x < 0 ? -y : (x == 0 ? x : y);
}

template <class R>
R true_sinc(R x) {
  R n = nearest(x), y = sine(x - n) / (x * number<R>(kPi));
  y = nearest(n * 0.5) * 2 == n ? y : -y;
  return x == 0 ? number<R>(1) : y;
}

// x in a type that holds it and a factor more exactly; of float64 for float32 R itself will do.
template <class R>
struct Wider {
  typedef R type;
};
template <>
struct Wider<long double> {
  typedef __float128 type;
};
template <class R>
using wider = typename Wider<R>::type;

// 1 / (1 + e^-(h + l)) for an l of rounding
template <class R>
R logistic(R h, R l) {
  R e = true_exp(-magnitude(h)), one = number<R>(1);
  e = e + e * (h < 0 ? l : -l);
  return (h < 0 ? e : one) / (1 + e);
}
template <class R>
R true_expit(R x) {
  return logistic(x, R{});
}

// Of the products below with a number beyond this only the limit 0 is left.
template <class R>
R floored(R x) {
  return x < -2000 ? number<R>(-2000) : x;
}

template <class R>
R true_silu(R x) {
  x = floored(x);
  return x * true_expit(x);
}

template <class R>
R true_gelu_tanh(R x) {
  x = floored(x);
  R top = x > 2000 ? number<R>(2000) : x;
  auto w = (wider<R>)top;
  auto u = (wider<R>)number<R>(1) * w;
  if constexpr (std::is_same_v<R, long double>)
    u = 1.5957691216057307117597842397375274738Q * (w + 0.044715Q * w * w * w);
  else
    u = number<R>(1.5957691216057307117597842397375275L) * (w + 0.044715 * w * w * w);
  R h = (R)u;
  return x * logistic(h, (R)(u - (wider<R>)h));
}

// erfc(z + l) = erfc(z) - l 2 / sqrt(pi) e^(-z^2) for an l of rounding
template <class R>
R true_gelu(R x) {
  x = floored(x);
  auto w = (wider<R>)x;
  auto u = -w;
  if constexpr (std::is_same_v<R, long double>)
    u = u * 0.70710678118654752440084436210484903928Q;
  else
    u = u * number<R>(0.70710678118654752440084436210484904L);
  R z = (R)u, l = (R)(u - (wider<R>)z);
  l = magnitude(z) < 100 ? l : R{};
  R slope = number<R>(-1.12837916709551257389615890312154517L) * true_exp(-z * z);
  return x * 0.5 * (true_erfc(z) + l * slope);
}

template <class R>
R true_hard_swish(R x) {
  R cap = x + 3 > 6 ? number<R>(6) : x + 3;
  return x <= -3 ? R{} : x * cap / 6;
}

template <class R>
R true_softplus(R x) {
  return (x > 0 ? x : (x != x ? x : R{})) + true_log1p(true_exp(-magnitude(x)));
}
template <class R>
R true_log_sigmoid(R x) {
  return -true_softplus(-x);
}

template <class R>
R true_logit(R x) {
  R y = 2 * x - 1, near = 2 * true_arctanh(magnitude(y) < 0.5 ? y : R{});
  return magnitude(y) < 0.5 ? near : true_log(x) - true_log1p(-x);
}

// What an error counts in units of, where that is more than the result: the rows' `unit`.
template <class R>
R unit_result(R) {
  return R{};
}
template <class R>
R unit_lgamma(R x) {
  if (!any(x < 0)) return R{};
  R y = lgamma_above(magnitude(x));
  return x < 0 ? (y > 1 ? y : number<R>(1)) : R{};
}
template <class R>
R unit_digamma(R x) {
  if (!any(x < 0)) return R{};
  R y = true_log1p(magnitude(x));
  return x < 0 ? (y > 1 ? y : number<R>(1)) : R{};
}
