// Measures one op body: `ulp NAME (sample|STEP)`, every STEP-th of all float32 values, prints the
// largest error and the time. benchmarks/ulp.py puts OK_N and the text of bodies.h before this
// file.
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <type_traits>
#include <vector>

namespace {

constexpr int kBlock = 65536;

// The reference for f32: the C library's float64 functions, eight lanes at a time where it has
// them (4 ulp of float64 are 2^-27 ulp of float32).
#if defined(__AVX512F__) && defined(__GLIBC__) && OK_N == 16
#define OK_MVEC 1
typedef double Real __attribute__((vector_size(64)));
#define OK_LIBRARY(name, c)           \
  extern "C" Real _ZGVeN8v_##c(Real); \
  Real true_##name(Real x) { return _ZGVeN8v_##c(x); }
Real true_sqrt(Real x) {
  for (int i = 0; i < 8; i++) x[i] = std::sqrt(x[i]);
  return x;
}
#else
typedef double Real;
#define OK_LIBRARY(name, c) \
  Real true_##name(Real x) { return std::c(x); }
Real true_sqrt(Real x) { return std::sqrt(x); }
#endif
#define OK_LIBRARY_LONG(name, c) \
  long double true_##name(long double x) { return c##l(x); }
long double true_sqrt(long double x) { return sqrtl(x); }

// Our name and C's.
// clang-format off
#define OK_EACH(X)                                                                    \
  X(exp, exp) X(expm1, expm1) X(exp2, exp2) X(log, log) X(log1p, log1p) X(log2, log2) \
  X(log10, log10) X(cbrt, cbrt) X(sin, sin) X(cos, cos) X(tan, tan) X(arcsin, asin)   \
  X(arccos, acos) X(arctan, atan) X(sinh, sinh) X(cosh, cosh) X(tanh, tanh)           \
  X(arcsinh, asinh) X(arccosh, acosh) X(arctanh, atanh) X(erf, erf) X(erfc, erfc)
// What the C library lacks, and what its errors count in units of.
#define OK_OURS(X)                                                                    \
  X(erfinv, result) X(lgamma, lgamma) X(digamma, digamma) X(trigamma, result)         \
  X(sinc, result) X(expit, result) X(logit, result) X(softplus, result)               \
  X(log_sigmoid, result) X(gelu, result) X(gelu_tanh, result) X(silu, result)         \
  X(hard_swish, result)
// clang-format on
OK_EACH(OK_LIBRARY)
OK_EACH(OK_LIBRARY_LONG)
#include "ulp_true.h"

template <Real (*F)(Real)>
void each(const double* x, double* o) {
  for (int i = 0; i < kBlock; i += int(sizeof(Real) / sizeof(double))) {
    Real v;
    std::memcpy(&v, x + i, sizeof v);
    v = F(v);
    std::memcpy(o + i, &v, sizeof v);
  }
}

template <class V>
OK_FN V ok_log_sigmoid(V x) {
  return -ok_softplus(-x);
}

template <class T>
struct Function {
  const char* name;
  void (*body)(const char*, char*);
  void (*reference)(const double*, double*);
  long double (*exact)(long double);
  void (*units)(const double*, double*);  // the error counts against these, where larger
  long double (*unit)(long double);
};

#define OK_BODY(name, _)                                                  \
  template <class T>                                                      \
  __attribute__((noinline)) void body_##name(const char* x, char* o) {    \
    for (long i = 0; i < kBlock * long(sizeof(T)); i += OK_N * sizeof(T)) \
      ok_store(o + i, ok_##name(ok_load<T>(x + i)));                      \
  }
OK_EACH(OK_BODY)
OK_OURS(OK_BODY)
#define OK_ROW(name, unit) \
  {#name, body_##name<T>, each<true_##name>, true_##name, each<unit_##unit>, unit_##unit},
#define OK_LIBRARY_ROW(name, c) OK_ROW(name, result)
template <class T>
const Function<T>* find(const char* name) {
  static const Function<T> table[] = {OK_EACH(OK_LIBRARY_ROW) OK_OURS(OK_ROW)};
  for (const Function<T>& f : table)
    if (!std::strcmp(f.name, name)) return &f;
  return nullptr;
}

template <class T>
struct Worst {
  double ulp = 0;
  T at = 0;
  long wrong = 0;  // NaN or infinity where the other is not
};

template <class T, class E>
void compare(Worst<T>& w, T x, T got, E exact, T larger = 0) {
  T want = T(exact);
  if (want != want || got != got || std::isinf(want) || std::isinf(got)) {
    // An exact value just past the largest finite number may go either way within half an ulp.
    if ((want != want) != (got != got) || (want == want && want != got)) {
      w.wrong++;
      w.at = x;
    }
    return;
  }
  int e;
  want = std::fmax(std::fabs(want), larger);
  std::frexp(want, &e);
  constexpr int lowest = sizeof(T) == 4 ? -149 : -1074, digits = sizeof(T) == 4 ? 24 : 53;
  e = want == 0 || e - digits < lowest ? lowest : e - digits;
  double d = double(std::fabs(E(got) - exact) * std::ldexp(E(1), -e));
  if (d > w.ulp) w.ulp = d, w.at = x;
}

// The same for float without branches, so that 2^32 values take seconds.
void compare_block(Worst<float>& w, const float* x, const float* got, const double* exact,
                   const double* units) {
  double worst = 0;
  static double d[kBlock];
  for (int i = 0; i < kBlock; i++) {
    float want = float(exact[i]), size = std::fabs(want), unit = float(units[i]);
    size = size < unit ? unit : size;
    unsigned bits;
    std::memcpy(&bits, &size, 4);
    long e = bits >> 23 & 255;
    long scale = (1023l + 149 - (e > 1 ? e - 1 : 0)) << 52;
    double up;
    std::memcpy(&up, &scale, 8);
    double v = std::fabs(double(got[i]) - exact[i]) * up;
    bool special = e == 255 || got[i] - got[i] != 0;
    bool same = (want != want && got[i] != got[i]) || want == got[i];
    d[i] = special ? (same ? 0 : 1e300) : v;
  }
  for (int i = 0; i < kBlock; i++) worst = d[i] > worst ? d[i] : worst;
  if (!(worst > w.ulp)) return;
  for (int i = 0; i < kBlock; i++) {
    if (d[i] >= 1e300) w.wrong++;
    if (d[i] > w.ulp && d[i] < 1e300) w.ulp = d[i];
    if (d[i] == worst) w.at = x[i];
  }
}

Worst<float> full(const Function<float>& f, unsigned step) {
  std::vector<float> x(kBlock), o(kBlock);
  std::vector<double> wide(kBlock), exact(kBlock), units(kBlock);
  Worst<float> w;
  for (unsigned long base = 0; base * step < 1ul << 32; base += kBlock) {
    for (int i = 0; i < kBlock; i++) {
      unsigned bits = unsigned((base + i) * step);
      std::memcpy(&x[i], &bits, 4);
      wide[i] = x[i];
    }
    f.body((const char*)x.data(), (char*)o.data());
    f.reference(wide.data(), exact.data());
    f.units(wide.data(), units.data());
    compare_block(w, x.data(), o.data(), exact.data(), units.data());
  }
  return w;
}

// Random bit patterns, then everyday ranges, then the neighbourhood of 1, far and near.
template <class T>
void fill(T* x, int round) {
  for (int i = 0; i < kBlock; i++) {
    double u = drand48() * 2 - 1;
    unsigned long bits = (unsigned long)mrand48() << 32 ^ (unsigned long)(unsigned)mrand48();
    if (round % 7 == 0)
      std::memcpy(&x[i], &bits, sizeof(T));
    else if (round % 7 == 1)
      x[i] = T(u * 6);
    else if (round % 7 == 2)
      x[i] = T(u * (sizeof(T) == 4 ? 104 : 745));
    else if (round % 7 == 3)
      x[i] = T(std::ldexp(u, -int(mrand48() & 31)));
    else if (round % 7 == 4)
      x[i] = T(1 + u * 0.5);
    else if (round % 7 == 5)
      x[i] = T(u * 40);
    else
      x[i] = T(1 - std::ldexp(u, -int(mrand48() & 63)));
  }
}

template <class T>
Worst<T> sample(const Function<T>& f, int rounds) {
  std::vector<T> x(kBlock), o(kBlock);
  Worst<T> w;
  for (int round = 0; round < rounds; round++) {
    fill(x.data(), round);
    f.body((const char*)x.data(), (char*)o.data());
    for (int i = 0; i < kBlock; i++) compare(w, x[i], o[i], f.exact(x[i]), T(f.unit(x[i])));
  }
  return w;
}

// Nanoseconds per element of the fastest of many runs.
template <class F>
double fastest(F run) {
  double best = 1e9;
  for (int repeat = 0; repeat < 100; repeat++) {
    auto begin = std::chrono::steady_clock::now();
    run();
    std::chrono::duration<double> t = std::chrono::steady_clock::now() - begin;
    best = std::fmin(best, t.count() / kBlock * 1e9);
  }
  return best;
}

template <class T>
double speed(const Function<T>& f) {
  std::vector<T> x(kBlock), o(kBlock);
  for (T& v : x) v = T(drand48() * 4);
  return fastest([&] { f.body((const char*)x.data(), (char*)o.data()); });
}

// Functions of two operands.
template <class T>
struct Binary {
  const char* name;
  void (*body)(const T*, const T*, T*);
  long double (*exact)(long double, long double);
  void (*fill)(T*, T*, int);
  bool larger;  // the error counts against the larger operand, where the result may cancel
};

template <class T>
constexpr double kBig = sizeof(T) == 4 ? 104 : 745;

template <class T>
void fill_power(T* x, T* y, int round) {
  for (int i = 0; i < kBlock; i++) {
    double u = drand48() * 2 - 1, v = drand48() * 2 - 1;
    x[i] = T(std::exp(round % 3 == 0 ? u : round % 3 == 1 ? u * kBig<T> * 0.95 : u * 0.01));
    double log = std::log(double(x[i]));
    y[i] = T(round & 1 || log == 0 ? v * 4 : v * kBig<T> / log);
  }
}

// Unrelated operands, and operands of about the same size.
template <class T>
void fill_pair(T* x, T* y, int round) {
  fill(x, round);
  fill(y, round);
  if (round & 1)
    for (int i = 0; i < kBlock; i++) y[i] = T(x[i] * (drand48() * 4 - 2));
}

long double logaddexpl(long double x, long double y) {
  long double top = x > y ? x : y;
  return x == y ? x + logl(2) : top + log1pl(expl(-fabsl(x - y)));
}
long double logaddexp2l(long double x, long double y) {
  long double top = x > y ? x : y;
  return x == y ? x + 1 : top + log1pl(exp2l(-fabsl(x - y))) / logl(2);
}

#define OK_PAIRS(X)                                    \
  X(power, pow, powl, fill_power, false)               \
  X(arctan2, arctan2, atan2l, fill_pair, false)        \
  X(hypot, hypot, hypotl, fill_pair, false)            \
  X(logaddexp, logaddexp, logaddexpl, fill_pair, true) \
  X(logaddexp2, logaddexp2, logaddexp2l, fill_pair, true)
#define OK_PAIR_BODY(name, body, exact, fill, larger)                                              \
  template <class T>                                                                               \
  __attribute__((noinline)) void body_##name(const T* x, const T* y, T* o) {                       \
    for (int i = 0; i < kBlock; i += OK_N)                                                         \
      ok_store((char*)(o + i), ok_##body(ok_load<T>((char*)(x + i)), ok_load<T>((char*)(y + i)))); \
  }
OK_PAIRS(OK_PAIR_BODY)
#define OK_PAIR_ROW(name, body, exact, fill, larger) \
  {#name, body_##name<T>, exact, fill<T>, larger},
template <class T>
const Binary<T>* find_binary(const char* name) {
  static const Binary<T> table[] = {OK_PAIRS(OK_PAIR_ROW)};
  for (const Binary<T>& f : table)
    if (!std::strcmp(f.name, name)) return &f;
  return nullptr;
}

template <class T>
Worst<T> sample(const Binary<T>& f, int rounds) {
  std::vector<T> x(kBlock), y(kBlock), o(kBlock);
  Worst<T> w;
  for (int round = 0; round < rounds; round++) {
    f.fill(x.data(), y.data(), round);
    f.body(x.data(), y.data(), o.data());
    for (int i = 0; i < kBlock; i++)
      compare(w, x[i], o[i], f.exact(x[i], y[i]),
              f.larger ? std::fmax(std::fabs(x[i]), std::fabs(y[i])) : T(0));
  }
  return w;
}

template <class T>
double speed(const Binary<T>& f) {
  std::vector<T> x(kBlock), y(kBlock), o(kBlock);
  for (int i = 0; i < kBlock; i++) x[i] = T(drand48() * 4 + 0.01), y[i] = T(drand48() * 8 - 4);
  return fastest([&] { f.body(x.data(), y.data(), o.data()); });
}

}  // namespace

#if OK_N == 16
typedef float type;
#else
typedef double type;
#endif

int main(int count, char** words) {
  if (count != 3) return 2;
  Worst<type> w;
  double ns;
  int step = std::atoi(words[2]);
  if (const Binary<type>* f = find_binary<type>(words[1])) {
    ns = speed(*f);
    w = sample(*f, step ? 60 : 15);
  } else {
    const Function<type>* g = find<type>(words[1]);
    if (!g) return 2;
    ns = speed(*g);
#if OK_N == 16
    w = step ? full(*g, step) : sample(*g, 20);
#else
    w = sample(*g, step ? 100 : 20);
#endif
  }
  std::printf("%.3f %.9g %ld %.3f\n", w.ulp, double(w.at), w.wrong, ns);
  return 0;
}
