// check.h: a test driver in a few lines: named tests, CHECK, CHECK_THROWS; exit status says it all.
#pragma once

#include <atomic>
#include <cstdio>
#include <vector>

namespace opkiln::test {

struct Case {
  const char* name;
  void (*body)();
};

inline std::vector<Case>& cases() {
  static std::vector<Case> all;
  return all;
}
inline std::atomic<int> failures{0};
inline std::atomic<long> checks{0};

struct Register {
  Register(const char* name, void (*body)()) { cases().push_back({name, body}); }
};

inline bool report(bool ok, const char* text, const char* file, int line) {
  ++checks;
  if (!ok && ++failures <= 40) std::fprintf(stderr, "%s:%d: failed: %s\n", file, line, text);
  return ok;
}

}  // namespace opkiln::test

#define TEST(name)                                                  \
  static void name();                                               \
  static const opkiln::test::Register register_##name(#name, name); \
  static void name()

#define CHECK(...) \
  opkiln::test::report(static_cast<bool>(__VA_ARGS__), #__VA_ARGS__, __FILE__, __LINE__)

// Evaluates to a copy of nothing: the test continues whether or not the error came.
#define CHECK_THROWS(type, ...)                                                      \
  do {                                                                               \
    bool thrown = false;                                                             \
    try {                                                                            \
      __VA_ARGS__;                                                                   \
    } catch (const type&) {                                                          \
      thrown = true;                                                                 \
    }                                                                                \
    opkiln::test::report(thrown, #__VA_ARGS__ " throws " #type, __FILE__, __LINE__); \
  } while (false)
