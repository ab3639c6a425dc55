// alias.cpp: byte extents of views and the test for elements that share bytes.
#include "alias.h"

#include <algorithm>
#include <array>
#include <vector>

namespace opkiln::core {

ByteRange byte_range(DType dtype, int ndim, const std::int64_t* shape,
                     const std::int64_t* strides) noexcept {
  ByteRange range{0, itemsize(dtype)};
  for (int i = 0; i < ndim; ++i) {
    if (shape[i] == 0) return {};
    const std::int64_t reach = (shape[i] - 1) * strides[i];
    (reach < 0 ? range.lo : range.hi) += reach;
  }
  return range;
}

bool same_layout(const ArrayView& a, const ArrayView& b) noexcept {
  if (a.dtype != b.dtype || a.ndim != b.ndim) return false;
  for (int i = 0; i < a.ndim; ++i) {
    if (a.shape[i] != b.shape[i]) return false;
    if (a.shape[i] > 1 && a.strides[i] != b.strides[i]) return false;
  }
  return true;
}

bool has_internal_overlap(const ArrayView& view) {
  struct Step {
    std::int64_t stride, extent;
  };
  std::array<Step, 64> steps{};
  std::size_t count = 0;
  std::int64_t elements = 1;
  if (byte_range(view).empty()) return false;
  for (int i = 0; i < view.ndim; ++i) {
    if (view.shape[i] == 1) continue;
    if (view.strides[i] == 0) return true;
    elements *= view.shape[i];
    steps[count++] = {view.strides[i] < 0 ? -view.strides[i] : view.strides[i], view.shape[i]};
  }
  std::sort(steps.begin(), steps.begin() + static_cast<std::ptrdiff_t>(count),
            [](const Step& a, const Step& b) { return a.stride < b.stride; });
  std::int64_t span = itemsize(view.dtype);  // bytes from the first to the last of the inner axes
  bool nested = true;
  for (std::size_t i = 0; i < count; ++i) {
    nested = nested && steps[i].stride >= span;
    span += (steps[i].extent - 1) * steps[i].stride;
  }
  if (nested) return false;
  if (elements > 4096) return true;
  std::vector<std::int64_t> offsets{0};
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t before = offsets.size();
    for (std::int64_t k = 1; k < steps[i].extent; ++k)
      for (std::size_t j = 0; j < before; ++j) offsets.push_back(offsets[j] + k * steps[i].stride);
  }
  std::sort(offsets.begin(), offsets.end());
  for (std::size_t i = 1; i < offsets.size(); ++i)
    if (offsets[i] - offsets[i - 1] < itemsize(view.dtype)) return true;
  return false;
}

}  // namespace opkiln::core
