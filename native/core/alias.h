// alias.h: which bytes a strided view touches, and whether two views or two elements share some.
#pragma once

#include <cstdint>

#include "layout.h"

namespace opkiln::core {

/// Bytes [lo, hi) relative to the data pointer; empty (lo == hi) for a view without elements.
struct ByteRange {
  std::int64_t lo = 0;
  std::int64_t hi = 0;
  bool empty() const noexcept { return lo == hi; }
};

ByteRange byte_range(DType dtype, int ndim, const std::int64_t* shape,
                     const std::int64_t* strides) noexcept;
inline ByteRange byte_range(const ArrayView& v) noexcept {
  return byte_range(v.dtype, v.ndim, v.shape, v.strides);
}

/// Whether the ranges intersect: may report views that interleave without a shared byte.
inline bool ranges_overlap(const char* p, ByteRange a, const char* q, ByteRange b) noexcept {
  if (a.empty() || b.empty()) return false;
  const auto x = reinterpret_cast<std::uintptr_t>(p), y = reinterpret_cast<std::uintptr_t>(q);
  return x + static_cast<std::uintptr_t>(a.lo) < y + static_cast<std::uintptr_t>(b.hi) &&
         y + static_cast<std::uintptr_t>(b.lo) < x + static_cast<std::uintptr_t>(a.hi);
}
inline bool may_overlap(const ArrayView& a, const ArrayView& b) noexcept {
  return ranges_overlap(a.data, byte_range(a), b.data, byte_range(b));
}

/// Same dtype, extents and strides (strides of axes of extent 1 do not matter).
bool same_layout(const ArrayView& a, const ArrayView& b) noexcept;
inline bool exact_alias(const ArrayView& a, const ArrayView& b) noexcept {
  return a.data == b.data && same_layout(a, b);
}

/// Whether two elements of the view share a byte. Exact up to 4,096 elements; larger views whose
/// strides do not nest count as overlapping.
bool has_internal_overlap(const ArrayView& view);

}  // namespace opkiln::core
