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

  static void pack(const ok_product_args& x, i64 l, i64 deep, i64 j, i64 width, char* to) {
    const char* from = x.b + l * x.b_k + j * x.b_n;
    for (i64 i = 0; i < deep; ++i, from += x.b_k, to += line) {
      if (kParts == 1 && x.b_n == item && width == lanes) {
        for (int v = 0; v < kVecs; ++v) ((V*)to)[v] = ((const M*)from)[v];
        continue;
      }
      for (int p = 0; p < kParts; ++p)
        for (i64 c = 0; c < lanes; ++c)
          ((E*)to)[p * lanes + c] = c < width ? ((const E*)(from + c * x.b_n))[p] : T(0);
    }
  }

  struct Tile {
    const char *a, *b;
    i64 a_m, a_k, b_k, deep;
    char* total;
    char* out;
    i64 out_m, out_n, width;
    bool first, last;
  };

  template <int kRows>
  static OK_INLINE void tile(const Tile& t, i64 i) {
    V sum[kRows][kVecs][kParts] = {};
    const char *a = t.a + i * t.a_m, *b = t.b;
    for (i64 l = t.deep; l > 0; --l, a += t.a_k, b += t.b_k) {
      V y[kVecs][kParts];
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v)
#pragma GCC unroll 2
        for (int p = 0; p < kParts; ++p) y[v][p] = ((const M*)b)[p * kVecs + v];
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const E* x = (const E*)(a + r * t.a_m);
#pragma GCC unroll 4
        for (int v = 0; v < kVecs; ++v) {
          sum[r][v][0] = ok_mac(sum[r][v][0], x[0], y[v][0]);
          if constexpr (kParts == 2) {
            sum[r][v][0] = ok_mac(sum[r][v][0], -x[1], y[v][1]);
            sum[r][v][1] = ok_mac(sum[r][v][1], x[0], y[v][1]);
            sum[r][v][1] = ok_mac(sum[r][v][1], x[1], y[v][0]);
          }
        }
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      V* total = (V*)(t.total + (i + r) * line);
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v)
#pragma GCC unroll 2
        for (int p = 0; p < kParts; ++p) {
          V s = sum[r][v][p];
          if (!t.first) s = total[p * kVecs + v] + s;
          if (kParts == 1 && t.last && t.width == lanes && t.out_n == item)
            ((M*)(t.out + (i + r) * t.out_m))[v] = s;
          else
            total[p * kVecs + v] = s;
        }
    }
  }

  template <int kRows>
  static OK_INLINE void tiles(const Tile& t, i64 i, i64 end) {
    for (; i + kRows <= end; i += kRows) tile<kRows>(t, i);
    if constexpr (kRows > 1)
      if (i < end) tiles<kRows / 2>(t, i, end);
  }

  static OK_OPAQUE void run(const ok_product_args& x, i64 j, i64 width) {
    const bool dense = kParts == 1 && x.b_n == item && width == lanes && x.m <= OK_HIGH;
    char* const panel = x.scratch;
    Tile t;
    t.a_m = x.a_m, t.a_k = x.a_k;
    t.out_m = x.out_m, t.out_n = x.out_n, t.width = width;
    t.total = x.scratch + OK_DEEP * line;
    // With one block of products nothing waits: the panel is copied once for all rows.
    const i64 most = OK_HIGH;
    for (i64 i = 0; i < x.m; i += most) {
      const i64 high = x.m - i < most ? x.m - i : most;
      t.out = x.out + i * x.out_m + j * x.out_n;
      i64 l = 0;
      do {
        t.deep = x.k - l < OK_DEEP ? x.k - l : OK_DEEP;
        t.first = l == 0, t.last = l + t.deep == x.k;
        t.a = x.a + i * x.a_m + l * x.a_k;
        if (dense) {
          t.b = x.b + l * x.b_k + j * x.b_n, t.b_k = x.b_k;
        } else {
          if (i == 0 || x.k > OK_DEEP) pack(x, l, t.deep, j, width, panel);
          t.b = panel, t.b_k = line;
        }
        tiles<rows>(t, 0, high);
        l += OK_DEEP;
      } while (l < x.k);
      if (kParts == 1 && width == lanes && x.out_n == item) continue;
      for (i64 r = 0; r < high; ++r)
        for (i64 c = 0; c < width; ++c)
          for (int p = 0; p < kParts; ++p)
            ((E*)(t.out + r * x.out_m + c * x.out_n))[p] =
                ((const E*)(t.total + r * line))[p * lanes + c];
    }
  }
};
template <class T, int kParts>
struct ok_product {
  static constexpr int vecs = kParts == 1 ? 2 : 1;
  static constexpr u64 scratch = (OK_DEEP + OK_HIGH) * kParts * vecs * OK_WIDE;

  // The narrowest panel that has room for what is left of the columns.
  template <int kBytes>
  static void rest(const ok_product_args& x, i64 j, i64 width) {
    if constexpr (kBytes > 16)
      if (width * (i64)sizeof(T) <= kBytes / 2) return rest<kBytes / 2>(x, j, width);
    ok_product_panel<T, kParts, 1, kBytes>::run(x, j, width);
  }

  static void matrix(const ok_product_args& x) {
    typedef ok_product_panel<T, kParts, vecs, OK_WIDE> Full;
    i64 j = 0;
    for (; j + Full::lanes <= x.n; j += Full::lanes) Full::run(x, j, Full::lanes);
    if (j == x.n) return;
    if ((x.n - j) * (i64)sizeof(T) > OK_WIDE)
      Full::run(x, j, x.n - j);
    else
      rest<OK_WIDE>(x, j, x.n - j);
  }

  // Places [begin, end) of the axes before the matrices.
  static void run(const ok_args* a, i64 begin, i64 end) {
    const i64* s = a->col;  // of a, b and out along i, j and l
    ok_product_args x;
    x.scratch = a->scratch;
    x.m = a->far[0], x.n = a->far[1], x.k = a->far[2];
    x.a_m = s[0], x.a_k = s[2], x.b_n = s[4], x.b_k = s[5], x.out_m = s[6], x.out_n = s[7];
    for (i64 r = begin; r < end; ++r) {
      x.a = a->ptr[0] + r * a->row[0];
      x.b = a->ptr[1] + r * a->row[1];
      x.out = a->ptr[2] + r * a->row[2];
      matrix(x);
    }
  }
};
