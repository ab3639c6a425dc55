// In: keys and pools; out: what people read of them: lists, log lines, error messages.
#pragma once

#include "core/errors.h"
#include "core/table.h"
#include "face/compiled.h"

namespace opkiln::face {

// "float32[16, 4], int, out float32[16, 4]": the layouts that a key tells apart; null with an
// error.
PyObject* key_text(const uint64_t* key, size_t n);

// (function id, key, idle, leased, in flight, bytes) of each pool of the calling thread.
PyObject* list_pools();

// For the log: what happened in the pool while a call looked for an executor.
class PoolWatch {
 public:
  PoolWatch(Compiled* self, const core::ThreadTable& table)
      : self_(self), table_(table), before_(count()) {}
  // Runs the frontend's hook. Throws PythonError.
  void tell(const core::KeyView& key) const;

 private:
  struct Counts {
    uint64_t built, waits, grew, evictions;
    int64_t nanoseconds;
  };
  Counts count() const;

  Compiled* self_;
  const core::ThreadTable& table_;
  Counts before_;
};

// Sets PoolTimeout, with the key, the counts and how long what is in flight has been so.
void raise_pool_timeout(Compiled* self, const core::PoolTimeout& e);

}  // namespace opkiln::face
