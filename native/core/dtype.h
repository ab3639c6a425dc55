// dtype.h: the element types by number, and their sizes.
#pragma once

#include <cstdint>

namespace opkiln::core {

enum class DType : std::uint8_t {
  kBool = 0,
  kI8 = 1,
  kI16 = 2,
  kI32 = 3,
  kI64 = 4,
  kU8 = 5,
  kU16 = 6,
  kU32 = 7,
  kU64 = 8,
  kF32 = 9,
  kF64 = 10,
  kF16 = 11,
  kBF16 = 12,
  kC64 = 13,
  kC128 = 14,
};

/// Numbers from here on are units of datetime64 and timedelta64, 8 bytes each.
inline constexpr int kFirstUnit = 15;
inline constexpr int kMostDTypes = 64;

inline constexpr std::int64_t kItemSizes[kFirstUnit] = {1, 1, 2, 4, 8, 1, 2, 4,
                                                        8, 4, 8, 2, 2, 8, 16};

constexpr std::int64_t itemsize(DType dtype) noexcept {
  const int code = static_cast<int>(dtype);
  return code < kFirstUnit ? kItemSizes[code] : 8;
}
constexpr bool is_float(DType d) noexcept { return d == DType::kF32 || d == DType::kF64; }
constexpr bool is_unsigned(DType d) noexcept { return d >= DType::kU8 && d <= DType::kU64; }
/// bool counts as an integer here: it is a byte that holds 0 or 1.
constexpr bool is_integer(DType d) noexcept { return d <= DType::kU64; }

}  // namespace opkiln::core
