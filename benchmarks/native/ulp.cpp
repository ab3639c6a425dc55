// Measures one op body: `ulp NAME DTYPE (full|sample)` prints the largest error and the time.
// benchmarks/ulp.py puts OK_N and the text of bodies.h before this file.
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

namespace {

constexpr int kBlock = 65536;

// The reference for f32: the C library's float64 functions, eight lanes at a time where it has
// them (4 ulp of float64 are 2^-27 ulp of float32).
#if defined(__AVX512F__) && defined(__GLIBC__) && OK_N == 16
#define OK_MVEC 1
typedef double wide8 __attribute__((vector_size(64)));
#define OK_REFERENCE(name)                            \
  extern "C" wide8 _ZGVeN8v_##name(wide8);            \
  void reference_##name(const double* x, double* o) { \
    for (int i = 0; i < kBlock; i += 8) {             \
      wide8 v;                                        \
      std::memcpy(&v, x + i, sizeof v);               \
      v = _ZGVeN8v_##name(v);                         \
      std::memcpy(o + i, &v, sizeof v);               \
    }                                                 \
  }
#else
#define OK_REFERENCE(name)                                   \
  void reference_##name(const double* x, double* o) {        \
    for (int i = 0; i < kBlock; i++) o[i] = std::name(x[i]); \
  }
#endif

#define OK_EACH(X) X(exp) X(expm1) X(exp2) X(log) X(log1p) X(log2) X(tanh) X(sin) X(cos) X(erf)
OK_EACH(OK_REFERENCE)

template <class T>
struct Function {
  const char* name;
  void (*body)(const char*, char*);
  void (*reference)(const double*, double*);
  long double (*exact)(long double);
};

#define OK_BODY(name)                                                     \
  template <class T>                                                      \
  __attribute__((noinline)) void body_##name(const char* x, char* o) {    \
    for (long i = 0; i < kBlock * long(sizeof(T)); i += OK_N * sizeof(T)) \
      ok_store(o + i, ok_##name(ok_load<T>(x + i)));                      \
  }
OK_EACH(OK_BODY)
#define OK_ROW(name) {#name, body_##name<T>, reference_##name, name##l},
template <class T>
const Function<T>* find(const char* name) {
  static const Function<T> table[] = {OK_EACH(OK_ROW)};
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
void compare(Worst<T>& w, T x, T got, E exact) {
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
  std::frexp(want == 0 ? T(0) : want, &e);
  constexpr int lowest = sizeof(T) == 4 ? -149 : -1074, digits = sizeof(T) == 4 ? 24 : 53;
  e = want == 0 || e - digits < lowest ? lowest : e - digits;
  double d = double(std::fabs(E(got) - exact) * std::ldexp(E(1), -e));
  if (d > w.ulp) w.ulp = d, w.at = x;
}

// The same for float without branches, so that 2^32 values take seconds.
void compare_block(Worst<float>& w, const float* x, const float* got, const double* exact) {
  double worst = 0;
  static double d[kBlock];
  for (int i = 0; i < kBlock; i++) {
    float want = float(exact[i]);
    unsigned bits;
    std::memcpy(&bits, &want, 4);
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

Worst<float> full(const Function<float>& f) {
  std::vector<float> x(kBlock), o(kBlock);
  std::vector<double> wide(kBlock), exact(kBlock);
  Worst<float> w;
  for (unsigned long base = 0; base < 1ul << 32; base += kBlock) {
    for (int i = 0; i < kBlock; i++) {
      unsigned bits = unsigned(base + i);
      std::memcpy(&x[i], &bits, 4);
      wide[i] = x[i];
    }
    f.body((const char*)x.data(), (char*)o.data());
    f.reference(wide.data(), exact.data());
    compare_block(w, x.data(), o.data(), exact.data());
  }
  return w;
}

// Random bit patterns, then everyday ranges, then the neighbourhood of 1.
template <class T>
void fill(T* x, int round) {
  for (int i = 0; i < kBlock; i++) {
    double u = drand48() * 2 - 1;
    unsigned long bits = (unsigned long)mrand48() << 32 ^ (unsigned long)(unsigned)mrand48();
    if (round % 5 == 0)
      std::memcpy(&x[i], &bits, sizeof(T));
    else if (round % 5 == 1)
      x[i] = T(u * 6);
    else if (round % 5 == 2)
      x[i] = T(u * (sizeof(T) == 4 ? 104 : 745));
    else if (round % 5 == 3)
      x[i] = T(std::ldexp(u, -int(mrand48() & 31)));
    else
      x[i] = T(1 + u * 0.5);
  }
}

template <class T>
Worst<T> sample(const Function<T>& f, int rounds) {
  std::vector<T> x(kBlock), o(kBlock);
  Worst<T> w;
  for (int round = 0; round < rounds; round++) {
    fill(x.data(), round);
    f.body((const char*)x.data(), (char*)o.data());
    for (int i = 0; i < kBlock; i++) compare(w, x[i], o[i], f.exact(x[i]));
  }
  return w;
}

template <class T>
Worst<T> sample_pow(int rounds, double* ns) {
  std::vector<T> x(kBlock), y(kBlock), o(kBlock);
  Worst<T> w;
  const double big = sizeof(T) == 4 ? 104 : 745;
  auto body = [&] {
    for (int i = 0; i < kBlock; i += OK_N)
      ok_store((char*)&o[i], ok_pow(ok_load<T>((char*)&x[i]), ok_load<T>((char*)&y[i])));
  };
  for (int round = 0; round < rounds; round++) {
    for (int i = 0; i < kBlock; i++) {
      double u = drand48() * 2 - 1, v = drand48() * 2 - 1;
      x[i] = T(std::exp(round % 3 == 0 ? u : round % 3 == 1 ? u * big * 0.95 : u * 0.01));
      double log = std::log(double(x[i]));
      y[i] = T(round & 1 || log == 0 ? v * 4 : v * big / log);
    }
    body();
    for (int i = 0; i < kBlock; i++)
      compare(w, x[i], o[i], powl((long double)x[i], (long double)y[i]));
  }
  *ns = 1e9;
  for (int i = 0; i < kBlock; i++) x[i] = T(drand48() * 4 + 0.01), y[i] = T(drand48() * 8 - 4);
  for (int repeat = 0; repeat < 50; repeat++) {
    auto begin = std::chrono::steady_clock::now();
    body();
    std::chrono::duration<double> t = std::chrono::steady_clock::now() - begin;
    *ns = std::fmin(*ns, t.count() / kBlock * 1e9);
  }
  return w;
}

template <class T>
double speed(const Function<T>& f) {
  std::vector<T> x(kBlock), o(kBlock);
  for (T& v : x) v = T(drand48() * 4);
  double best = 1e9;
  for (int repeat = 0; repeat < 100; repeat++) {
    auto begin = std::chrono::steady_clock::now();
    f.body((const char*)x.data(), (char*)o.data());
    std::chrono::duration<double> t = std::chrono::steady_clock::now() - begin;
    best = std::fmin(best, t.count() / kBlock * 1e9);
  }
  return best;
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
  bool all = !std::strcmp(words[2], "full");
  if (!std::strcmp(words[1], "pow")) {
    w = sample_pow<type>(all ? 60 : 12, &ns);
  } else {
    const Function<type>* f = find<type>(words[1]);
    if (!f) return 2;
    ns = speed(*f);
#if OK_N == 16
    w = all ? full(*f) : sample(*f, 20);
#else
    w = sample(*f, all ? 100 : 20);
#endif
  }
  std::printf("%.3f %.9g %ld %.3f\n", w.ulp, double(w.at), w.wrong, ns);
  return 0;
}
