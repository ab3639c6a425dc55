// ok_k0 CCC
//   once:
//     v2 = np.uint8(4)
//   loop:
//     v0 = load 0 : uint8
//     v1 = negative v0
//     store 1 v1
//     v3 = less v1 v2
//     store 2 v3
struct ok_k0_state {
  const u64 *scalar;
};
static OK_OPAQUE void ok_k0_loop0(char *const *p, const i64 *cs, i64 steps, i64 valid, ok_k0_state &st) {
  char *p0 = p[0];
  char *p1 = p[1];
  char *p2 = p[2];
  const i64 c0 = cs[0];
  const auto v2 = ok_splat<u8>((u8)4ul);
  for (; steps > 0; --steps) {
    {
      const auto v0 = ok_load<u8>(p0);
      const auto v1 = -v0;
      ok_store(p1, v1);
      const auto v3 = v1 < v2;
      ok_store_bool(p2, v3);
    }
    p0 += 64 * c0;
    p1 += 64 * 1;
    p2 += 64 * 1;
  }
  (void)valid;
}
extern "C" __attribute__((visibility("default"))) u64 ok_k0(const ok_args *a, i64 row_begin, i64 row_end) {
  ok_k0_state st;
  st.scalar = a->scalar;
  const i64 n = a->cols;
  char *moved[3], *const *p = a->ptr;
  {
  }
  alignas(64) char pad0[64];
  alignas(64) char pad1[64];
  alignas(64) char pad2[64];
  const bool spread = !(a->col[0]);
  for (i64 r = row_begin; r < row_end; ++r) {
    if (r || spread) {
      moved[0] = a->ptr[0] + r * a->row[0];
      moved[1] = a->ptr[1] + r * a->row[1];
      moved[2] = a->ptr[2] + r * a->row[2];
      p = moved;
    }
    if (spread) {  // one element in all lanes
      if (!a->col[0]) ok_pad<u8>(pad0, moved[0], 0, 0, 64), moved[0] = pad0;
    }
    {
      i64 m = n;
      char *const *q = p;
      char *after[3];
      if (n >= 4096 && (u64)p[1] % 64) m = (i64)(64 - (u64)p[1] % 64) / 1;
      for (i64 left = n;;) {
        const i64 whole = m / 64, rest = m % 64;
        if (whole) ok_k0_loop0(q, a->col, whole, 64, st);
        if (rest) {
          char *t[3];
          i64 ts[3];
          t[0] = pad0, ts[0] = 1;
          if (a->col[0]) ok_pad<u8>(pad0, q[0] + whole * 64 * a->col[0], a->col[0], rest, 64);
          t[1] = pad1, ts[1] = 1;
          t[2] = pad2, ts[2] = 1;
          ok_k0_loop0(t, ts, 1, rest, st);
          ok_unpad<u8>(q[1] + whole * 64 * a->col[1], a->col[1], pad1, rest);
          ok_unpad<u8>(q[2] + whole * 64 * a->col[2], a->col[2], pad2, rest);
        }
        if (!(left -= m)) break;
        after[0] = p[0] + m * a->col[0];
        after[1] = p[1] + m * a->col[1];
        after[2] = p[2] + m * a->col[2];
        q = after, m = left;
      }
    }
  }
  return ok_leave(0);
}
