// errors.cpp: texts of the core's errors; the face writes the messages that users see.
#include "errors.h"

namespace opkiln::core {

const char* host_error_name(HostErrorKind kind) noexcept {
  switch (kind) {
    case HostErrorKind::kOverflow:
      return "overflow";
    case HostErrorKind::kZeroDivision:
      return "zero_division";
    case HostErrorKind::kBroadcast:
      return "broadcast";
    case HostErrorKind::kSame:
      return "same";
    case HostErrorKind::kEmptyReduction:
      return "empty_reduction";
    case HostErrorKind::kRange:
      return "range";
    case HostErrorKind::kNegativePower:
      return "negative_power";
    case HostErrorKind::kIndex:
      return "index";
    case HostErrorKind::kDomain:
      return "domain";
  }
  return "unknown";
}

HostError::HostError(HostErrorKind kind_value, int reg_value, std::int64_t a_value,
                     std::int64_t b_value, bool a_is_unsigned)
    : Error(std::string("host program: ") + host_error_name(kind_value) + " at register " +
            std::to_string(reg_value) + " (" +
            (a_is_unsigned ? std::to_string(static_cast<std::uint64_t>(a_value))
                           : std::to_string(a_value)) +
            ", " + std::to_string(b_value) + ")"),
      kind(kind_value),
      reg(reg_value),
      a(a_value),
      b(b_value),
      a_unsigned(a_is_unsigned) {}

PoolTimeout::PoolTimeout(std::vector<std::uint64_t> key_words, std::size_t idle_count,
                         std::size_t leased_count, std::size_t in_flight_count,
                         std::vector<double> ages)
    : Error("no executor became free: " + std::to_string(idle_count) + " idle, " +
            std::to_string(leased_count) + " leased, " + std::to_string(in_flight_count) +
            " in flight"),
      key(std::move(key_words)),
      idle(idle_count),
      leased(leased_count),
      in_flight(in_flight_count),
      event_age_s(std::move(ages)) {}

ThreadPoolLimit::ThreadPoolLimit(std::size_t limit_value, std::size_t live_value)
    : Error("OPKILN_MAX_THREAD_POOLS is " + std::to_string(limit_value) + " and " +
            std::to_string(live_value) + " threads hold a pool"),
      limit(limit_value),
      live(live_value) {}

}  // namespace opkiln::core
