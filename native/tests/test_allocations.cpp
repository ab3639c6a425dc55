// test_allocations.cpp: an operator new that counts, in a file of its own so that it is never
// inlined.
#include <atomic>
#include <cstdlib>
#include <new>

#include "support.h"

static std::atomic<long> allocations{0};

namespace opkiln::test {
long allocation_count() { return allocations; }
}  // namespace opkiln::test

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
void* operator new(std::size_t size) {
  ++allocations;
  if (void* p = std::malloc(size)) return p;
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
#endif
