// main.cpp: runs every registered test, or those whose name contains the argument.
#include <chrono>
#include <cstring>

#include "check.h"

int main(int argc, char** argv) {
  using Clock = std::chrono::steady_clock;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  for (const auto& test : opkiln::test::cases()) {
    if (argc > 1 && std::strstr(test.name, argv[1]) == nullptr) continue;
    const int before = opkiln::test::failures;
    const auto start = Clock::now();
    try {
      test.body();
    } catch (const std::exception& error) {
      opkiln::test::report(false, error.what(), test.name, 0);
    }
    const double ms = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
    std::printf("%s %8.1f ms  %s\n", opkiln::test::failures == before ? "ok  " : "FAIL", ms,
                test.name);
  }
  std::printf("%zu tests, %ld checks, %d failed\n", opkiln::test::cases().size(),
              opkiln::test::checks.load(), opkiln::test::failures.load());
  return opkiln::test::failures == 0 ? 0 : 1;
}
