// tile.cpp: loops of copies by item size, each in the order that its strided side lies in memory.
#include "tile.h"

#include <cstdlib>
#include <cstring>
#include <utility>

namespace opkiln::core {
namespace {

/// An element as a value that a register holds.
template <std::size_t kItem>
struct Item {
  using Type = unsigned __int128;
};
template <>
struct Item<1> {
  using Type = std::uint8_t;
};
template <>
struct Item<2> {
  using Type = std::uint16_t;
};
template <>
struct Item<4> {
  using Type = std::uint32_t;
};
template <>
struct Item<8> {
  using Type = std::uint64_t;
};

template <std::size_t kItem>
typename Item<kItem>::Type load(const char* from) {
  typename Item<kItem>::Type value;
  std::memcpy(&value, from, kItem);
  return value;
}
template <std::size_t kItem>
void store(char* to, typename Item<kItem>::Type value) {
  std::memcpy(to, &value, kItem);
}

// Lines with known steps become vector code: for several generations of machines, from which the
// loader chooses. Sanitizers are not there yet when it does.
#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__clang__) && __GNUC__ >= 12 && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define OPKILN_CLONES __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define OPKILN_CLONES
#endif

/// A line with steps in items.
template <std::size_t kItem, std::int64_t kTo, std::int64_t kFrom>
OPKILN_CLONES void fixed_line(char* __restrict to, const char* __restrict from,
                              std::int64_t count) {
  constexpr auto kSize = static_cast<std::int64_t>(kItem);
  for (std::int64_t i = 0; i < count; ++i)
    store<kItem>(to + i * kTo * kSize, load<kItem>(from + i * kFrom * kSize));
}

/// A line with steps in items, or where those are 0 in bytes that are not known beforehand.
template <std::size_t kItem, std::int64_t kTo, std::int64_t kFrom>
void line(char* __restrict to, std::int64_t to_step, const char* __restrict from,
          std::int64_t from_step, std::int64_t count) {
  constexpr auto kSize = static_cast<std::int64_t>(kItem);
  if (kTo != 0) to_step = kTo * kSize;
  if (kFrom != 0) from_step = kFrom * kSize;
  constexpr std::int64_t kTogether = 8;  // loaded before any is stored
  for (; count >= kTogether; count -= kTogether) {
    typename Item<kItem>::Type value[kTogether];
    for (std::int64_t i = 0; i < kTogether; ++i) value[i] = load<kItem>(from + i * from_step);
    for (std::int64_t i = 0; i < kTogether; ++i) store<kItem>(to + i * to_step, value[i]);
    from += kTogether * from_step;
    to += kTogether * to_step;
  }
  for (std::int64_t i = 0; i < count; ++i)
    store<kItem>(to + i * to_step, load<kItem>(from + i * from_step));
}

template <std::size_t kItem>
void copy_line(char* to, std::int64_t to_step, const char* from, std::int64_t from_step,
               std::int64_t count) {
  constexpr auto kSize = static_cast<std::int64_t>(kItem);
  if (to_step == kSize) {
    if (from_step == kSize) {
      std::memcpy(to, from, static_cast<std::size_t>(count) * kItem);
      return;
    }
    if (from_step == 0) return fixed_line<kItem, 1, 0>(to, from, count);
    if (from_step == 2 * kSize) return fixed_line<kItem, 1, 2>(to, from, count);
    if (from_step == -kSize) return fixed_line<kItem, 1, -1>(to, from, count);
    return line<kItem, 1, 0>(to, 0, from, from_step, count);
  }
  if (from_step == kSize && to_step == -kSize) return fixed_line<kItem, -1, 1>(to, from, count);
  if (from_step == kSize) return line<kItem, 0, 1>(to, to_step, from, 0, count);
  line<kItem, 0, 0>(to, to_step, from, from_step, count);
}

/// Rows of so few bytes that a call of memcpy for each would cost more than the copy.
template <std::size_t kBytes>
bool copy_short(Lines<char> to, Lines<const char> from, std::int64_t rows, std::size_t bytes) {
  if (bytes != kBytes) return false;
  for (std::int64_t i = 0; i < rows; ++i)
    std::memcpy(to.at + i * to.row, from.at + i * from.row, kBytes);
  return true;
}

template <std::size_t... kWords>
bool copy_words(Lines<char> to, Lines<const char> from, std::int64_t rows, std::size_t bytes,
                std::index_sequence<kWords...>) {
  return (copy_short<4 * (kWords + 1)>(to, from, rows, bytes) || ...);
}

/// Vectors of 16 bytes, as all machines have.
template <std::size_t kItem>
struct Block {
  static constexpr std::size_t kSide = 16 / kItem;
  typedef typename Item<kItem>::Type Vector __attribute__((vector_size(16)));

  template <std::size_t... kLane>
  static void interleave(Vector* a, std::size_t i, std::size_t j, std::index_sequence<kLane...>) {
    const Vector low =
        __builtin_shufflevector(a[i], a[j], static_cast<int>(kLane / 2 + (kLane % 2) * kSide)...);
    a[j] = __builtin_shufflevector(
        a[i], a[j], static_cast<int>(kSide / 2 + kLane / 2 + (kLane % 2) * kSide)...);
    a[i] = low;
  }

  /// kSide x kSide elements: columns of `from`, dense along its rows, become rows of `to`.
  static void transpose(Lines<char> to, Lines<const char> from) {
    Vector a[kSide];
    for (std::size_t i = 0; i < kSide; ++i)
      std::memcpy(&a[i], from.at + static_cast<std::int64_t>(i) * from.col, 16);
    // Each round of perfect shuffles moves one bit of the place from row to column.
    for (std::size_t round = 1; round < kSide; round *= 2) {
      Vector b[kSide];
      for (std::size_t i = 0; i < kSide / 2; ++i) {
        b[2 * i] = a[i], b[2 * i + 1] = a[i + kSide / 2];
        interleave(b, 2 * i, 2 * i + 1, std::make_index_sequence<kSide>());
      }
      for (std::size_t i = 0; i < kSide; ++i) a[i] = b[i];
    }
    for (std::size_t i = 0; i < kSide; ++i)
      std::memcpy(to.at + static_cast<std::int64_t>(i) * to.row, &a[i], 16);
  }
};

/// Along rows where the strided side lies that way, or columns are few.
template <std::size_t kItem>
void copy_strided(Lines<char> to, Lines<const char> from, std::int64_t rows, std::int64_t cols) {
  constexpr auto kSize = static_cast<std::int64_t>(kItem);
  const Lines<const char> far = to.col == kSize ? from : Lines<const char>{to.at, to.row, to.col};
  if ((far.row != 0 && std::abs(far.row) < std::abs(far.col)) || 8 * cols < rows) {
    std::swap(to.row, to.col);
    std::swap(from.row, from.col);
    std::swap(rows, cols);
  }
  for (std::int64_t i = 0; i < rows; ++i)
    copy_line<kItem>(to.at + i * to.row, to.col, from.at + i * from.row, from.col, cols);
}

template <std::size_t kItem>
void copy(Lines<char> to, Lines<const char> from, std::int64_t rows, std::int64_t cols) {
  constexpr auto kSize = static_cast<std::int64_t>(kItem);
  const auto bytes = static_cast<std::size_t>(cols) * kItem;
  if (to.col == kSize && from.col == kSize &&
      copy_words(to, from, rows, bytes, std::make_index_sequence<16>()))
    return;
  if constexpr (kItem < 16) {
    constexpr auto kSide = static_cast<std::int64_t>(Block<kItem>::kSide);
    // One side is dense along its rows, the other along its columns.
    const bool turned = from.row == kSize && to.col == kSize;
    if (turned || (from.col == kSize && to.row == kSize)) {
      if (!turned) {
        std::swap(to.row, to.col);
        std::swap(from.row, from.col);
        std::swap(rows, cols);
      }
      const std::int64_t high = rows / kSide * kSide, wide = cols / kSide * kSide;
      for (std::int64_t j = 0; j < wide; j += kSide)
        for (std::int64_t i = 0; i < high; i += kSide)
          Block<kItem>::transpose({to.at + i * to.row + j * kSize, to.row, kSize},
                                  {from.at + i * kSize + j * from.col, kSize, from.col});
      copy_strided<kItem>({to.at + high * to.row, to.row, to.col},
                          {from.at + high * from.row, from.row, from.col}, rows - high, wide);
      copy_strided<kItem>({to.at + wide * to.col, to.row, to.col},
                          {from.at + wide * from.col, from.row, from.col}, rows, cols - wide);
      return;
    }
  }
  copy_strided<kItem>(to, from, rows, cols);
}

}  // namespace

void copy_lines(std::size_t item, Lines<char> to, Lines<const char> from, std::int64_t rows,
                std::int64_t cols) {
  switch (item) {
    case 1:
      return copy<1>(to, from, rows, cols);
    case 2:
      return copy<2>(to, from, rows, cols);
    case 4:
      return copy<4>(to, from, rows, cols);
    case 8:
      return copy<8>(to, from, rows, cols);
    default:
      return copy<16>(to, from, rows, cols);
  }
}

}  // namespace opkiln::core
