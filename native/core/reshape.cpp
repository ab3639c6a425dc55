// reshape.cpp: NumPy's attempt to reshape without a copy, over extents and strides.
#include "reshape.h"

namespace opkiln::core {

bool reshaped_strides(DType dtype, const std::vector<std::int64_t>& have,
                      const std::vector<std::int64_t>& have_strides,
                      const std::vector<std::int64_t>& want, std::int64_t* want_strides) {
  std::vector<std::int64_t> extents, strides;  // of axes that matter
  bool empty = false;
  for (std::size_t i = 0; i < have.size(); ++i) {
    empty = empty || have[i] == 0;
    if (have[i] == 1) continue;
    extents.push_back(have[i]);
    strides.push_back(have_strides[i]);
  }
  for (std::size_t i = 0; i < want.size(); ++i) want_strides[i] = itemsize(dtype);
  if (empty) return true;
  // Runs of axes that hold as many elements on both sides: each must be one stride on this side.
  std::size_t old_from = 0, new_from = 0;
  while (old_from < extents.size() && new_from < want.size()) {
    std::size_t old_to = old_from + 1, new_to = new_from + 1;
    std::int64_t old_size = extents[old_from], new_size = want[new_from];
    while (old_size != new_size) {
      if (new_size < old_size)
        new_size *= want[new_to++];
      else
        old_size *= extents[old_to++];
    }
    for (std::size_t i = old_from; i + 1 < old_to; ++i)
      if (strides[i] != extents[i + 1] * strides[i + 1]) return false;
    want_strides[new_to - 1] = strides[old_to - 1];
    for (std::size_t i = new_to - 1; i > new_from; --i)
      want_strides[i - 1] = want_strides[i] * want[i];
    old_from = old_to;
    new_from = new_to;
  }
  // What is left has extent 1.
  for (std::size_t i = new_from; i < want.size(); ++i)
    want_strides[i] = i > 0 ? want_strides[i - 1] : itemsize(dtype);
  return true;
}

}  // namespace opkiln::core
