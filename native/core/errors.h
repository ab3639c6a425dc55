// errors.h: every error the core throws, each with the data the face needs to word a message.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace opkiln::core {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A plan was put together wrongly or called with arrays that its signature excludes: our bug.
class PlanError : public Error {
 public:
  using Error::Error;
};

enum class HostErrorKind : std::uint8_t {
  kOverflow,        // checked int64 arithmetic; a, b: the operands
  kZeroDivision,    // integer or float division by zero; a: dividend
  kBroadcast,       // extents a and b do not broadcast
  kSame,            // extents a and b must be equal
  kEmptyReduction,  // a == 0 elements into b results
  kRange,           // value a does not fit dtype code b
  kNegativePower,   // integer a to a negative power b
  kIndex,           // index a is out of bounds for extent b
  kDomain,          // negative float to a fractional power (complex in Python)
};

/// "overflow", "zero_division", "broadcast", "same", "empty_reduction", "range", ...
const char* host_error_name(HostErrorKind kind) noexcept;

/// A guard or a calculation of the host program failed. `reg` names the register.
class HostError : public Error {
 public:
  HostError(HostErrorKind kind, int reg, std::int64_t a, std::int64_t b, bool a_unsigned = false);

  const HostErrorKind kind;
  const int reg;
  const std::int64_t a;
  const std::int64_t b;
  const bool a_unsigned;  // a holds the bits of a uint64
};

/// A given output does not have the shape or dtype that the plan computes.
class OutMismatch : public Error {
 public:
  OutMismatch(int out_index, int expected_dtype, std::vector<std::int64_t> expected_shape)
      : Error("given output does not match the result"),
        out(out_index),
        dtype(expected_dtype),
        shape(std::move(expected_shape)) {}
  const int out;
  const int dtype;
  const std::vector<std::int64_t> shape;
};

/// No executor became free in time (or all are leased by this very thread: nothing to wait for).
class PoolTimeout : public Error {
 public:
  PoolTimeout(std::vector<std::uint64_t> key_words, std::size_t idle_count,
              std::size_t leased_count, std::size_t in_flight_count, std::vector<double> ages);
  const std::vector<std::uint64_t> key;  // the function's id first
  const std::size_t idle, leased, in_flight;
  const std::vector<double> event_age_s;  // seconds since record, oldest executor first
};

/// A custom op reported an error: its own words.
class OpError : public Error {
 public:
  explicit OpError(const std::string& message, int kernel_index = -1)
      : Error(message), kernel(kernel_index) {}
  const int kernel;  // of the plan, or -1
};

/// What a library exports is no op that this runtime knows.
class AbiError : public Error {
 public:
  using Error::Error;
};

class EventError : public Error {
 public:
  using Error::Error;
};

class EventTimeout : public EventError {
 public:
  using EventError::EventError;
};

/// Work for a stream that was closed, or that belongs to the process this one was forked from.
class StreamClosed : public Error {
 public:
  using Error::Error;
};

/// More live thread pools than `OPKILN_MAX_THREAD_POOLS` allows.
class ThreadPoolLimit : public Error {
 public:
  ThreadPoolLimit(std::size_t limit_value, std::size_t live_value);
  const std::size_t limit, live;
};

}  // namespace opkiln::core
