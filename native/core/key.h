// key.h: the exact key of a call: function, layouts, kinds; built on the stack, hashed on the way.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>

#include "dtype.h"
#include "layout.h"

namespace opkiln::core {

/// Words and their hash; equality compares every word, so a hash collision costs time only.
struct KeyView {
  const std::uint64_t* words;
  std::size_t size;
  std::uint64_t hash;

  bool equals(const std::uint64_t* other, std::size_t other_size) const noexcept {
    if (size != other_size) return false;
    std::uint64_t difference = 0;
    for (std::size_t i = 0; i < size; ++i) difference |= words[i] ^ other[i];
    return difference == 0;
  }
  std::uint64_t function_id() const noexcept { return words[0]; }
};

/// One per call, on the caller's stack: a nested call has its own. Grows for very long argument
/// lists.
class KeyBuilder {
 public:
  static constexpr std::size_t kInlineWords = 64;

  explicit KeyBuilder(std::uint64_t function_id) noexcept
      : begin_(inline_), end_(inline_), limit_(inline_ + kInlineWords) {
    *end_++ = function_id;
  }
  KeyBuilder(const KeyBuilder&) = delete;
  KeyBuilder& operator=(const KeyBuilder&) = delete;

  /// One array argument: dtype, rank, alignment, extents, strides.
  void array(DType dtype, int ndim, const std::int64_t* shape, const std::int64_t* strides,
             bool aligned) {
    layout(Tag::kArray, dtype, ndim, shape, strides, aligned);
  }
  /// One given output; `absent_out` for a None among several.
  void out(DType dtype, int ndim, const std::int64_t* shape, const std::int64_t* strides,
           bool aligned) {
    layout(Tag::kOut, dtype, ndim, shape, strides, aligned);
  }
  void absent_out() { word(tag(Tag::kAbsentOut)); }
  /// A weak scalar of kind 'i', 'u' or 'f': its value is not part of the key.
  void weak(char kind) {
    word(tag(Tag::kWeak) | static_cast<std::uint64_t>(static_cast<unsigned char>(kind)) << 8);
  }
  /// A static value by its number in the intern table.
  void stat(std::uint32_t interned) {
    word(tag(Tag::kStatic) | static_cast<std::uint64_t>(interned) << 8);
  }
  /// Start of a tuple, list or dict with `count` items ('t', 'l', 'd'); dict keys follow as stat().
  void open(char kind, std::uint32_t count) {
    word(tag(Tag::kOpen) | static_cast<std::uint64_t>(static_cast<unsigned char>(kind)) << 8 |
         static_cast<std::uint64_t>(count) << 16);
  }
  /// Anything else the caller wants to tell apart.
  void word(std::uint64_t value) {
    if (__builtin_expect(end_ == limit_, 0)) grow(1);
    *end_++ = value;
  }

  KeyView view() const noexcept {
    return {begin_, static_cast<std::size_t>(end_ - begin_), hash_words(begin_, end_)};
  }
  std::size_t size() const noexcept { return static_cast<std::size_t>(end_ - begin_); }

  static std::uint64_t hash_words(const std::uint64_t* word, const std::uint64_t* end) noexcept;

 private:
  enum class Tag : std::uint8_t {
    kArray = 1,
    kOut = 2,
    kAbsentOut = 3,
    kWeak = 4,
    kStatic = 5,
    kOpen = 6
  };
  static std::uint64_t tag(Tag value) noexcept { return static_cast<std::uint64_t>(value); }

  void layout(Tag kind, DType dtype, int ndim, const std::int64_t* shape,
              const std::int64_t* strides, bool aligned);
  void grow(std::size_t extra);

  std::uint64_t* begin_;
  std::uint64_t* end_;
  std::uint64_t* limit_;
  std::unique_ptr<std::uint64_t[]> heap_;
  std::uint64_t inline_[kInlineWords];  // left uninitialised on purpose
};

namespace detail {
inline std::uint64_t mum(std::uint64_t a, std::uint64_t b) noexcept {
  const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}
}  // namespace detail

inline std::uint64_t KeyBuilder::hash_words(const std::uint64_t* word,
                                            const std::uint64_t* end) noexcept {
  // A sum of products with constants that change by position: the products do not wait for each
  // other. Constants of wyhash.
  constexpr std::uint64_t kA = 0xa0761d6478bd642full, kB = 0xe7037ed1a0b428dbull;
  constexpr std::uint64_t kC = 0x8ebc6af09c88c6e3ull;
  std::uint64_t sum = static_cast<std::uint64_t>(end - word) * kC;
  std::uint64_t left = kA, right = kB;
  for (; end - word >= 2; word += 2, left += kB, right += kC)
    sum += detail::mum(word[0] ^ left, word[1] ^ right);
  if (word != end) sum += detail::mum(*word ^ left, right);
  return detail::mum(sum ^ kA, kC);
}

inline void KeyBuilder::layout(Tag kind, DType dtype, int ndim, const std::int64_t* shape,
                               const std::int64_t* strides, bool aligned) {
  const auto rank = static_cast<std::size_t>(ndim);
  if (__builtin_expect(static_cast<std::size_t>(limit_ - end_) < 1 + 2 * rank, 0))
    grow(1 + 2 * rank);
  std::uint64_t* out = end_;
  *out++ = tag(kind) | static_cast<std::uint64_t>(dtype) << 8 |
           static_cast<std::uint64_t>(rank) << 16 | static_cast<std::uint64_t>(aligned) << 32;
  for (std::size_t i = 0; i < rank; ++i, out += 2) {
    out[0] = static_cast<std::uint64_t>(shape[i]);
    out[1] = static_cast<std::uint64_t>(strides[i]);
  }
  end_ = out;
}

inline void KeyBuilder::grow(std::size_t extra) {
  const std::size_t used = size();
  const std::size_t capacity = 2 * (used + extra);
  auto bigger = std::unique_ptr<std::uint64_t[]>(new std::uint64_t[capacity]);
  std::memcpy(bigger.get(), begin_, used * sizeof(std::uint64_t));
  heap_ = std::move(bigger);
  begin_ = heap_.get();
  end_ = begin_ + used;
  limit_ = begin_ + capacity;
}

}  // namespace opkiln::core
