//@ product :
// Matrix products: out[i, j] = sum over l of a[i, l] * b[l, j]. Each sum runs in the order of l, in
// blocks of OK_DEEP that are then added up in order, so no tile, layout or cut changes a bit. A
// tile of sums stays in registers; b comes as dense panels as wide as a tile, copied where memory
// has no such panel. Complex numbers are two planes there.
#define OK_DEEP 256  // products that one sum adds up before it joins the total
#define OK_HIGH 64   // rows whose totals wait for the next block
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
template <class V, class T>
OK_FN V ok_mac(V sum, T x, V y) {
  const V all = x - V{};
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
  if constexpr (T(0.5) != 0) return ok_fma(all, y, sum);
#endif
  return sum + all * y;
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

  static void pack(const char* from, const ok_product_args& x, i64 deep, i64 width, char* to) {
    if (kParts == 1 && x.b_n == item && width == lanes) {
      for (i64 l = 0; l < deep; ++l, from += x.b_k, to += line)
        for (int v = 0; v < kVecs; ++v) ((V*)to)[v] = ((const M*)from)[v];
      return;
    }
    for (i64 l = 0; l < deep; ++l, from += x.b_k, to += line)
      for (int p = 0; p < kParts; ++p)
        for (i64 c = 0; c < lanes; ++c)
          ((E*)to)[p * lanes + c] = c < width ? ((const E*)(from + c * x.b_n))[p] : T(0);
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
  template <int kRows, class = void>
  struct Rows {
    Rows<kRows - 1> above;
    Line sum;
    OK_INLINE void clear() { above.clear(), sum.x = sum.y = V{}; }
    OK_INLINE void step(const char* a, i64 a_m, const Line& b) {
      above.step(a, a_m, b);
      mac(sum, (const E*)(a + (kRows - 1) * a_m), b);
    }
    OK_INLINE void add(const char* total) {
      above.add(total);
      const Line old = load(total + (kRows - 1) * line);
      sum.x = old.x + sum.x, sum.y = old.y + sum.y;
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
    OK_INLINE void add(const char*) {}
    OK_INLINE void keep(char*, i64) const {}
  };

  // Rows of one matrix over one block of products.
  struct Tile {
    const char *a, *b;
    char *total, *out;
    i64 a_m, a_k, b_k, out_m, deep;
    bool first, direct;  // direct: sums are done, and go to `out` as they are
  };
  template <int kRows>
  OK_INLINE static void tile(const Tile& t, i64 i) {
    Rows<kRows> rows;
    rows.clear();
    const char *a = t.a + i * t.a_m, *b = t.b;
    for (i64 l = t.deep; l > 0; --l, a += t.a_k, b += t.b_k) rows.step(a, t.a_m, load(b));
    char* total = t.total + i * line;
    if (!t.first) rows.add(total);
    if (t.direct)
      rows.keep(t.out + i * t.out_m, t.out_m);
    else
      rows.keep(total, line);
  }
  template <int kRows>
  OK_INLINE static void tiles(const Tile& t, i64 i, i64 end) {
    for (; i + kRows <= end; i += kRows) tile<kRows>(t, i);
    if constexpr (kRows > 1)
      if (i < end) tiles<kRows / 2>(t, i, end);
  }

  // Totals of rows to memory that has them otherwise than a panel.
  static void unpack(const ok_product_args& x, const char* total, char* out, i64 high, i64 width) {
    for (i64 r = 0; r < high; ++r, total += line, out += x.out_m) {
      if (kParts == 1 && x.out_n == item) {
        i64 c = 0;
        for (; c + (i64)(16 / sizeof(T)) <= width; c += 16 / sizeof(T))
          *(typename ok_line<T, 16>::mem*)(out + c * item) =
              *(const typename ok_line<T, 16>::mem*)(total + c * item);
        for (; c < width; ++c) ((E*)out)[c] = ((const E*)total)[c];
        continue;
      }
      for (i64 c = 0; c < width; ++c)
        for (int p = 0; p < kParts; ++p)
          ((E*)(out + c * x.out_n))[p] = ((const E*)total)[p * lanes + c];
    }
  }

  // `width` columns from j on, at so many places of the axes before the matrices.
  static OK_OPAQUE void run(const ok_product_args& x, i64 j, i64 width, i64 places) {
    const bool fits = kParts == 1 && width == lanes && x.out_n == item;
    const bool dense = kParts == 1 && width == lanes && x.b_n == item && x.m <= OK_HIGH;
    char* const panel = x.scratch;
    Tile t = {};
    t.a_m = x.a_m, t.a_k = x.a_k, t.out_m = x.out_m;
    t.total = x.scratch + OK_DEEP * line;
    for (i64 place = 0; place < places; ++place) {
      const char* const a = x.a + place * x.a_row;
      const char* const b = x.b + place * x.b_row + j * x.b_n;
      char* const out = x.out + place * x.out_row + j * x.out_n;
      for (i64 i = 0; i < x.m; i += OK_HIGH) {
        const i64 high = x.m - i < OK_HIGH ? x.m - i : OK_HIGH;
        t.out = out + i * x.out_m;
        i64 l = 0;
        do {
          t.deep = x.k - l < OK_DEEP ? x.k - l : OK_DEEP;
          t.first = l == 0, t.direct = fits && l + t.deep == x.k;
          t.a = a + i * x.a_m + l * x.a_k;
          t.b = b + l * x.b_k, t.b_k = x.b_k;
          if (!dense) {
            if (i == 0 || x.k > OK_DEEP) pack(t.b, x, t.deep, width, panel);
            t.b = panel, t.b_k = line;
          }
          tiles<rows>(t, 0, high);
          l += OK_DEEP;
        } while (l < x.k);
        if (!fits) unpack(x, t.total, t.out, high, width);
      }
    }
  }
};
template <class T, int kParts>
struct ok_product {
  static constexpr int vecs = kParts == 1 ? 2 : 1;
  static constexpr u64 scratch = (OK_DEEP + OK_HIGH) * kParts * vecs * OK_WIDE;
  typedef ok_product_panel<T, kParts, vecs, OK_WIDE> Full;

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
    if ((x.n - j) * (i64)sizeof(T) > OK_WIDE)
      Full::run(x, j, x.n - j, places);
    else
      rest<OK_WIDE>(x, j, places);
  }

  // Places [begin, end) of the axes before the matrices.
  static void run(const ok_args* a, i64 begin, i64 end) {
    const i64* s = a->col;  // of a, b and out along i, j and l
    ok_product_args x;
    x.scratch = a->scratch;
    x.m = a->far[0], x.n = a->far[1], x.k = a->far[2];
    x.a_m = s[0], x.a_k = s[2], x.b_n = s[4], x.b_k = s[5], x.out_m = s[6], x.out_n = s[7];
    x.a_row = a->row[0], x.b_row = a->row[1], x.out_row = a->row[2];
    // Matrices of one panel go through it together; of several, one after the other.
    const i64 together = x.n <= Full::lanes ? end - begin : 1;
    for (i64 r = begin; r < end; r += together) {
      x.a = a->ptr[0] + r * x.a_row;
      x.b = a->ptr[1] + r * x.b_row;
      x.out = a->ptr[2] + r * x.out_row;
      columns(x, together);
    }
  }
};
