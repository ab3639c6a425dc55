//@ product :
// Matrix products: out[i, j] = sum over l of a[i, l] * b[l, j]. Each sum runs in the order of l, in
// blocks of OK_DEEP that are then added up in order, so no tile, layout or cut changes a bit. A
// tile of sums stays in registers; b comes as dense panels as wide as a tile, copied where memory
// has no such panel. Complex numbers are two planes there.
#define OK_DEEP 256  // products that one sum adds up before it joins the total
#define OK_HIGH 64   // rows whose totals wait for the next block
#define OK_NEAR 16   // places whose matrices stay in the nearest cache
template <class T, int kBytes>
struct ok_line {
  typedef T type __attribute__((vector_size(kBytes)));
  typedef T mem __attribute__((vector_size(kBytes), aligned(1), may_alias));
};
struct ok_product_args {
  const char *a, *b;
  char *out, *scratch;
  i64 m, n, k, a_m, a_k, b_n, b_k, out_m, out_n;
  i64 a_row, b_row, out_row;  // from place to place
};
template <class V>
OK_FN V ok_mac(V sum, V x, V y) {
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
  if constexpr (ok_is_float<V>) return ok_fma(x, y, sum);
#endif
  return sum + x * y;
}
template <class V, class T>
OK_FN V ok_mac(V sum, T x, V y) {
  return ok_mac(sum, x - V{}, y);
}
// A panel of columns: kVecs vectors of kBytes, in kParts planes (2 of complex numbers).
template <class T, int kParts, int kVecs, int kBytes>
struct ok_product_panel {
  typedef typename ok_line<T, kBytes>::type V;
  typedef typename ok_line<T, kBytes>::mem M;
  typedef typename ok_vec<T>::one E;
  static constexpr i64 lanes = kVecs * kBytes / (i64)sizeof(T), item = kParts * (i64)sizeof(T);
  static constexpr i64 line = kParts * kVecs * kBytes;  // bytes of a row of the panel
  static constexpr int rows = OK_WIDE == 64 ? 8 : 4;    // of a tile: as many as registers hold

  static void copy(char* to, const char* from, i64 width) {
    typedef typename ok_line<T, 16>::mem Some;
    constexpr i64 some = 16 / sizeof(T);
    for (; width >= some; width -= some, to += 16, from += 16) *(Some*)to = *(const Some*)from;
    for (i64 c = 0; c < width; ++c) ((E*)to)[c] = ((const E*)from)[c];
  }
  // Rows of a panel whose idle lanes are zero already. Columns are the inner loop only where they
  // are dense: else each is a walk that begins once.
  static void pack(const char* from, const ok_product_args& x, i64 deep, i64 width, char* to) {
    if (kParts == 1 && x.b_n == item) {
      for (i64 l = 0; l < deep; ++l, from += x.b_k, to += line) copy(to, from, width);
      return;
    }
    for (int p = 0; p < kParts; ++p)
      for (i64 c = 0; c < width; ++c) {
        const char* read = from + c * x.b_n + p * (i64)sizeof(T);
        E* write = (E*)to + p * lanes + c;
        for (i64 l = deep; l > 0; --l, read += x.b_k, write += kParts * lanes)
          *write = *(const E*)read;
      }
  }

  // A row of a tile: two vectors of columns, or one, or the two parts of complex numbers. Not an
  // array, which the compiler would keep in memory.
  static constexpr bool two = kVecs * kParts == 2;
  struct Line {
    V x, y;
  };
  OK_INLINE static Line load(const char* p) {
    Line read;
    read.x = *(const M*)p, read.y = V{};
    if constexpr (two) read.y = ((const M*)p)[1];
    return read;
  }
  OK_INLINE static void store(char* p, const Line& value) {
    *(M*)p = value.x;
    if constexpr (two) ((M*)p)[1] = value.y;
  }
  OK_INLINE static void mac(Line& sum, const E* a, const Line& b) {
    sum.x = ok_mac(sum.x, a[0], b.x);
    if constexpr (two) sum.y = ok_mac(sum.y, a[0], b.y);
    if constexpr (kParts == 2) {
      sum.x = ok_mac(sum.x, -a[1], b.y);
      sum.y = ok_mac(sum.y, a[1], b.x);
    }
  }
  // Places and strides of eight rows. The compiler must not derive them from each other: it would
  // keep a register or a chain of additions for each row.
  struct Eight {
    const char *low, *high;
    i64 one, two, three;
    OK_INLINE Eight(const char* from, i64 row) : low(from), high(from + 4 * row), one(row) {
      two = 2 * row, three = 3 * row;
      asm("" : "+r"(low), "+r"(high), "+r"(two), "+r"(three));
    }
    OK_INLINE void next(i64 by) {
      low += by, high += by;
      asm("" : "+r"(low), "+r"(high), "+r"(one), "+r"(two), "+r"(three));
    }
    template <int kRow>
    OK_INLINE const char* at() const {
      const char* const p = kRow < 4 ? low : high;
      return kRow % 4 == 0 ? p : p + (kRow % 4 == 1 ? one : kRow % 4 == 2 ? two : three);
    }
  };
  // The same of rows next to each other, as far apart as the compiler knows.
  struct Dense {
    const char* first;
    template <int kRow>
    OK_INLINE const char* at() const {
      return first + kRow * line;
    }
  };
  template <int kRows, class = void>
  struct Rows {
    Rows<kRows - 1> above;
    Line sum;
    OK_INLINE void clear() { above.clear(), sum.x = sum.y = V{}; }
    OK_INLINE void step(const char* a, i64 a_m, const Line& b) {
      above.step(a, a_m, b);
      mac(sum, (const E*)(a + (kRows - 1) * a_m), b);
    }
    // The same from row kFirst on, of eight.
    template <int kFirst, class At>
    OK_INLINE void step(const At& at, i64 by, const Line& b) {
      if constexpr (kRows - 1 > kFirst) above.template step<kFirst>(at, by, b);
      mac(sum, (const E*)(at.template at<kRows - 1>() + by), b);
    }
    template <class At>
    OK_INLINE void keep(const At& to) const {
      above.keep(to);
      store((char*)to.template at<kRows - 1>(), sum);
    }
    // ... and of the rows before kFirst.
    template <int kLane, class Spreads>
    OK_INLINE void spread(const Line& b, const Spreads& from) {
      if constexpr (kRows > Spreads::rows)
        above.template spread<kLane>(b, from);
      else {
        if constexpr (kRows > 1) above.template spread<kLane>(b, from.above);
        sum.x = ok_mac(sum.x, from.template lane<kLane>(), b.x);
      }
    }
    OK_INLINE void keep(char* to, i64 row) const {
      above.keep(to, row);
      store(to + (kRows - 1) * row, sum);
    }
  };
  template <class None>
  struct Rows<0, None> {
    OK_INLINE void clear() {}
    OK_INLINE void step(const char*, i64, const Line&) {}
    OK_INLINE void keep(char*, i64) const {}
    template <class At>
    OK_INLINE void keep(const At&) const {}
  };

  // Totals of rows to memory that has them otherwise than a panel.
  static void unpack(const ok_product_args& x, const char* total, char* out, i64 high, i64 width) {
    for (; high > 0; --high, total += line, out += x.out_m) {
      if (kParts == 1 && x.out_n == item)
        copy(out, total, width);
      else
        for (int p = 0; p < kParts; ++p) {
          char* to = out + p * (i64)sizeof(T);
          for (i64 c = 0; c < width; ++c, to += x.out_n) *(E*)to = ((const E*)total)[p * lanes + c];
        }
    }
  }

  // Eight columns of rows of floats, a row read by two loads and then spread by shuffles. With a
  // load for each product the two ports for loads would be the limit; three rows of eight relieve
  // them.
  template <int kCount, class = void>
  struct Spread;
#if OK_WIDE == 64 && defined(__AVX512VL__) && !defined(__clang__)
  static constexpr int spreads =
      kVecs * kParts == 1 && kBytes == 32 && sizeof(T) == 4 && T(0.5) != 0 ? 3 : 0;
  template <int kCount, class None>
  struct Spread {
    static constexpr int rows = kCount;
    Spread<kCount - 1> above;
    V low, high;
    template <class At>
    OK_INLINE explicit Spread(const At& from) : above(from) {
      const char* const p = from.template at<kCount - 1>();
      low = both(p), high = both(p + 16);
      asm("" : "+v"(low), "+v"(high));  // or the compiler loads them one by one
    }
    OK_INLINE static V both(const char* p) {
      typedef float Half __attribute__((vector_size(16)));
      return (V)__builtin_ia32_vbroadcastf128_ps256((const Half*)p);
    }
    template <int kLane>
    OK_INLINE V lane() const {
      constexpr int q = kLane % 4;
      const V v = kLane < 4 ? low : high;
      return __builtin_shufflevector(v, v, q, q, q, q, q + 4, q + 4, q + 4, q + 4);
    }
  };
#else
  static constexpr int spreads = 0;
#endif
  template <class None>
  struct Spread<0, None> {
    template <class At>
    OK_INLINE explicit Spread(const At&) {}
  };
  // Steps up to kLast of eight, where a's columns and b's rows lie next to each other.
  template <int kLast, class At>
  OK_INLINE static void steps(Rows<8>& rows, const At& from, const char* b,
                              const Spread<spreads>& spread) {
    if constexpr (kLast > 0) steps<kLast - 1>(rows, from, b, spread);
    const Line y = load(b + kLast * line);
    if constexpr (spreads > 0) rows.template spread<kLast>(y, spread);
    rows.template step<spreads>(from, kLast * item, y);
  }
  // So many rows at one place.
  template <int kRows>
  OK_INLINE static void sums(const ok_product_args& x, const char* a, const char* b, char* out) {
    Rows<kRows> rows;
    rows.clear();
    i64 l = x.k;
    if constexpr (kRows == 8) {
      Eight from(a, x.a_m);
      if constexpr (spreads > 0)
        if (x.a_k == item && x.b_k == line) {
          if (l == 8) {  // all there is: no loop, and so no start from zero and no rest
            steps<7>(rows, from, b, Spread<spreads>(from));
            return rows.keep(Eight(out, x.out_m));
          }
          for (; l >= 8; l -= 8, from.next(8 * item), b += 8 * line)
            steps<7>(rows, from, b, Spread<spreads>(from));
        }
      for (; l > 0; --l, from.next(x.a_k), b += x.b_k) rows.template step<0>(from, 0, load(b));
      rows.keep(Eight(out, x.out_m));
    } else {
      for (; l > 0; --l, a += x.a_k, b += x.b_k) rows.step(a, x.a_m, load(b));
      rows.keep(out, x.out_m);
    }
  }
  template <int kRows>
  OK_INLINE static void tiles(const ok_product_args& x, i64 i, i64 first, i64 end) {
    for (; i + kRows <= x.m; i += kRows) {
      const char *a = x.a + first * x.a_row + i * x.a_m, *b = x.b + first * x.b_row;
      char* out = x.out + first * x.out_row + i * x.out_m;
      for (i64 left = end - first; left > 0; --left) {
        sums<kRows>(x, a, b, out);
        // What is read of x is read again, from memory: kept in vector registers, as g++ likes to,
        // it would wait there for the sums of the place before.
        asm volatile("" : : : "memory");
        a += x.a_row, b += x.b_row, out += x.out_row;
      }
    }
    if constexpr (kRows > 1)
      if (i < x.m) tiles<kRows / 2>(x, i, first, end);
  }
  // Dense matrices of eight rows and columns: no loop but that over the places.
  static constexpr bool eights = kVecs * kParts == 1 && lanes == 8 && rows == 8;
  static bool are_eights(const ok_product_args& x) {
    return x.m == 8 && x.k == 8 && x.a_k == item && x.a_m == line && x.b_k == line &&
           x.out_m == line;
  }
  OK_INLINE static void multiply_eights(const ok_product_args& x, i64 places) {
    const char *a = x.a, *b = x.b;
    char* out = x.out;
    for (const i64 a_row = x.a_row, b_row = x.b_row, out_row = x.out_row; places > 0; --places) {
      Rows<8> rows;
      rows.clear();
      const Dense from{a};
      steps<7>(rows, from, b, Spread<spreads>(from));
      rows.keep(Dense{out});
      a += a_row, b += b_row, out += out_row;
    }
  }
  // Sums of one block, where memory has b and out as a tile needs them. The same rows of a few
  // places follow each other, so that little is between their sums.
  static OK_OPAQUE void block(const ok_product_args& x, i64 places) {
    if constexpr (eights)
      if (are_eights(x)) return multiply_eights(x, places);
    for (i64 first = 0; first < places; first += OK_NEAR)
      tiles<rows>(x, 0, first, places - first < OK_NEAR ? places : first + OK_NEAR);
  }
  // Totals and the sums of one more block.
  static void add(const char* total, const char* more, i64 high, char* to, i64 row) {
    for (; high > 0; --high, total += line, more += line, to += row)
      for (i64 at = 0; at < line; at += kBytes)
        *(M*)(to + at) = *(const V*)(total + at) + *(const V*)(more + at);
  }

  // `width` columns from j on, at so many places of the axes before the matrices.
  static OK_OPAQUE void run(const ok_product_args& x, i64 j, i64 width, i64 places) {
    const bool fits = kParts == 1 && width == lanes && x.out_n == item;
    const bool dense = kParts == 1 && width == lanes && x.b_n == item && x.m <= OK_HIGH;
    ok_product_args y = x;
    y.b += j * x.b_n, y.out += j * x.out_n;
    if (dense && fits && x.k <= OK_DEEP) return block(y, places);
    char* const panel = x.scratch;
    if (!dense && width < lanes)
      for (i64 at = 0; at < OK_DEEP * line && at < x.k * line; at += kBytes)
        *(V*)(panel + at) = V{};
    char *const total = panel + OK_DEEP * line, *const more = total + OK_HIGH * line;
    for (i64 place = 0; place < places; ++place) {
      const char* const a = x.a + place * x.a_row;
      const char* const b = x.b + place * x.b_row + j * x.b_n;
      for (i64 i = 0; i < x.m; i += OK_HIGH) {
        char* const out = x.out + place * x.out_row + j * x.out_n + i * x.out_m;
        y.m = x.m - i < OK_HIGH ? x.m - i : OK_HIGH;
        i64 l = 0;
        do {
          y.k = x.k - l < OK_DEEP ? x.k - l : OK_DEEP;
          y.a = a + i * x.a_m + l * x.a_k;
          y.b = b + l * x.b_k;
          if (!dense) {
            if (i == 0 || x.k > OK_DEEP) pack(y.b, x, y.k, width, panel);
            y.b = panel, y.b_k = line;
          }
          const bool last = fits && l + y.k == x.k;  // sums go to `out` as they are
          y.out = l ? more : last ? out : total;
          y.out_m = !l && last ? x.out_m : line;
          block(y, 1);
          if (l) add(total, more, y.m, last ? out : total, last ? x.out_m : line);
          l += OK_DEEP;
        } while (l < x.k);
        if (!fits) unpack(x, total, out, y.m, width);
      }
    }
  }
};
template <class T, int kParts>
struct ok_product {
  static constexpr int vecs = kParts == 1 ? 2 : 1;
  static constexpr u64 scratch = (OK_DEEP + 2 * OK_HIGH) * kParts * vecs * OK_WIDE;
  typedef ok_product_panel<T, kParts, vecs, OK_WIDE> Full;
  typedef ok_product_panel<T, kParts, 1, OK_WIDE> Half;

  // The narrowest panel that has room for what is left of the columns.
  template <int kBytes>
  static void rest(const ok_product_args& x, i64 j, i64 places) {
    const i64 width = x.n - j;
    if constexpr (kBytes > 16)
      if (width * (i64)sizeof(T) <= kBytes / 2) return rest<kBytes / 2>(x, j, places);
    ok_product_panel<T, kParts, 1, kBytes>::run(x, j, width, places);
  }
  static void columns(const ok_product_args& x, i64 places) {
    i64 j = 0;
    for (; j + Full::lanes <= x.n; j += Full::lanes) Full::run(x, j, Full::lanes, places);
    if (j == x.n) return;
    constexpr i64 half = OK_WIDE / sizeof(T);
    if (kParts == 1 && x.n - j >= half && x.n - j <= half * 3 / 2) {
      Half::run(x, j, half, places);  // and a narrow panel, for less than two wide vectors
      j += half;
      if (j == x.n) return;
    }
    if (x.n - j > half)
      Full::run(x, j, x.n - j, places);
    else
      rest<OK_WIDE>(x, j, places);
  }

  // Half vectors that a row of n columns takes.
  static i64 halves(i64 n) { return (n * (i64)sizeof(T) + OK_WIDE / 2 - 1) / (OK_WIDE / 2); }
  // Whether to multiply the transposed matrices instead: few columns leave lanes idle. The sums
  // are the same; of complex numbers their parts would be added in another order.
  static bool turns(const ok_product_args& x) {
    return kParts == 1 && x.a_m == sizeof(T) && 4 * x.n * halves(x.m) < 3 * x.m * halves(x.n);
  }

  // Places [begin, end) of the axes before the matrices.
  static void run(const ok_args* a, i64 begin, i64 end) {
    const i64* s = a->col;  // of a, b and out along i, j and l
    ok_product_args x;
    x.scratch = a->scratch;
    x.m = a->far[0], x.n = a->far[1], x.k = a->far[2];
    x.a_m = s[0], x.a_k = s[2], x.b_n = s[4], x.b_k = s[5], x.out_m = s[6], x.out_n = s[7];
    x.a_row = a->row[0], x.b_row = a->row[1], x.out_row = a->row[2];
    const int first = turns(x);
    if (first) {
      x.m = a->far[1], x.n = a->far[0];
      x.a_m = s[4], x.a_k = s[5], x.b_n = s[0], x.b_k = s[2], x.out_m = s[7], x.out_n = s[6];
      x.a_row = a->row[1], x.b_row = a->row[0];
    }
    // Matrices of one panel go through it together; of several, one after the other.
    const i64 together = x.n <= Full::lanes ? end - begin : 1;
    for (i64 r = begin; r < end; r += together) {
      x.a = a->ptr[first] + r * x.a_row;
      x.b = a->ptr[1 - first] + r * x.b_row;
      x.out = a->ptr[2] + r * x.out_row;
      columns(x, together);
    }
  }
};
