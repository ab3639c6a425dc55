// reshape.h: strides under which the same memory has other extents.
#pragma once

#include <cstdint>
#include <vector>

#include "dtype.h"

namespace opkiln::core {

/// Strides of `want` extents for the elements, in C order, of `have` extents and strides; false
/// where there are none, as NumPy decides it. Both have as many elements.
bool reshaped_strides(DType dtype, const std::vector<std::int64_t>& have,
                      const std::vector<std::int64_t>& have_strides,
                      const std::vector<std::int64_t>& want, std::int64_t* want_strides);

}  // namespace opkiln::core
