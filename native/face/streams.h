// Streams as Python sees them: in goes the context of a call, out comes the stream it is queued on.
#pragma once

#include <memory>
#include <optional>

#include "core/event.h"
#include "core/stream.h"
#include "face/common.h"

namespace opkiln::face {

struct PyStream {
  std::shared_ptr<core::Stream> stream;
};

// `with stream:` blocks that some context may still be in, and queued calls that reclaim() has not
// seen the end of. While there is none, a call has nothing to look up.
extern uint32_t g_async_live;

// The asynchronous stream of the present context, or null: calls run inline. Throws PythonError.
std::shared_ptr<core::Stream> stream_here();

// Calls run inline while this object lives.
class InlineHere {
 public:
  InlineHere();
  InlineHere(const InlineHere&) = delete;
  InlineHere& operator=(const InlineHere&) = delete;
  ~InlineHere();

 private:
  PyObject* token_ = nullptr;
};

// For the tests of the pool: executors made from now on run on this stream. See use_stream().
core::Stream& current_stream();

// A number of seconds; none for None. Throws PythonError.
core::Timeout timeout_of(PyObject* seconds);
// Waits with the GIL given up and signals heard; EventTimeout with `what` in its text when the time
// is over. Throws PythonError.
void wait_here(const core::EventRecord& record, PyObject* timeout, const char* what);

}  // namespace opkiln::face
