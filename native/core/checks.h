// checks.h: what must hold, verified in builds with OPKILN_CHECKS (the core's own tests).
#pragma once

#ifdef OPKILN_CHECKS
#include <cstdio>
#include <cstdlib>

namespace opkiln::core {

inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "opkiln: broken invariant: %s\n", what);
  std::abort();
}

}  // namespace opkiln::core
#endif
