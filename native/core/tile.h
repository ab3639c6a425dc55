// tile.h: copies rectangles of elements between strided memory and dense tiles.
#pragma once

#include <cstddef>
#include <cstdint>

namespace opkiln::core {

/// One side of a copy: where its first element lies, and bytes from row to row and from column to
/// column. Elements may lie at any address.
template <class Byte>
struct Lines {
  Byte* at;
  std::int64_t row, col;
};

/// Copies rows x cols elements of `item` bytes (1, 2, 4, 8 or 16). The sides share no memory.
void copy_lines(std::size_t item, Lines<char> to, Lines<const char> from, std::int64_t rows,
                std::int64_t cols);

}  // namespace opkiln::core
