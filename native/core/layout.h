// layout.h: a strided array as the core sees it: pointer, type, extents, byte strides.
#pragma once

#include <cstdint>

#include "dtype.h"

namespace opkiln::core {

inline constexpr int kMaxRank = 16;

enum ArrayFlags : std::uint32_t {
  kAligned = 1,  // data and strides are multiples of the item's alignment
  kWritable = 2,
};

/// Borrowed view: shape and strides must outlive the call it is passed to. Strides are in bytes.
struct ArrayView {
  char* data = nullptr;
  DType dtype = DType::kF32;
  int ndim = 0;  // kAbsent marks "no array here" in a list of outputs
  const std::int64_t* shape = nullptr;
  const std::int64_t* strides = nullptr;
  std::uint32_t flags = kAligned | kWritable;

  static constexpr int kAbsent = -1;
  bool present() const noexcept { return ndim >= 0; }
};

inline ArrayView absent_array() noexcept {
  ArrayView view;
  view.ndim = ArrayView::kAbsent;
  return view;
}

}  // namespace opkiln::core
