// ok_k0 CCC
//   loop:
//     v0 = load 0 : int32
//     v1 = bool v0
//     v2 = load 1 : int32
//     v3 = bool v2
//     v4 = logical_or v1 v3
//     store 2 v4
struct ok_k0_state {
  const u64 *scalar;
};
static OK_OPAQUE void ok_k0_loop0(char *const *p, const i64 *cs, i64 steps, i64 valid, ok_k0_state &st) {
  char *p0 = p[0];
  char *p1 = p[1];
  char *p2 = p[2];
  const i64 c0 = cs[0];
  const i64 c1 = cs[1];
  for (; steps >= 4; steps -= 4) {
    const auto r0_0 = ok_load<i32>(p0);
    const auto r0_1 = ok_load<i32>(p0 + 16 * c0);
    const auto r0_2 = ok_load<i32>(p0 + 32 * c0);
    const auto r0_3 = ok_load<i32>(p0 + 48 * c0);
    asm volatile("" : : : "memory");  // in this order
    const auto r2_0 = ok_load<i32>(p1);
    const auto r2_1 = ok_load<i32>(p1 + 16 * c1);
    const auto r2_2 = ok_load<i32>(p1 + 32 * c1);
    const auto r2_3 = ok_load<i32>(p1 + 48 * c1);
    asm volatile("" : : : "memory");  // in this order
    {
      const auto v0 = r0_0;
      const auto v2 = r2_0;
      const auto v1 = ok_to_bool(v0);
      const auto v3 = ok_to_bool(v2);
      const auto v4 = ok_or(v1, v3);
      ok_store_bool(p2, v4);
    }
    {
      const auto v0 = r0_1;
      const auto v2 = r2_1;
      const auto v1 = ok_to_bool(v0);
      const auto v3 = ok_to_bool(v2);
      const auto v4 = ok_or(v1, v3);
      ok_store_bool(p2 + 16 * 1, v4);
    }
    {
      const auto v0 = r0_2;
      const auto v2 = r2_2;
      const auto v1 = ok_to_bool(v0);
      const auto v3 = ok_to_bool(v2);
      const auto v4 = ok_or(v1, v3);
      ok_store_bool(p2 + 32 * 1, v4);
    }
    {
      const auto v0 = r0_3;
      const auto v2 = r2_3;
      const auto v1 = ok_to_bool(v0);
      const auto v3 = ok_to_bool(v2);
      const auto v4 = ok_or(v1, v3);
      ok_store_bool(p2 + 48 * 1, v4);
    }
    p0 += 64 * c0;
    p1 += 64 * c1;
    p2 += 64 * 1;
  }
  for (; steps > 0; --steps) {
    {
      const auto v0 = ok_load<i32>(p0);
      const auto v1 = ok_to_bool(v0);
      const auto v2 = ok_load<i32>(p1);
      const auto v3 = ok_to_bool(v2);
      const auto v4 = ok_or(v1, v3);
      ok_store_bool(p2, v4);
    }
    p0 += 16 * c0;
    p1 += 16 * c1;
    p2 += 16 * 1;
  }
  (void)valid;
}
extern "C" __attribute__((visibility("default"))) u64 ok_k0(const ok_args *a, i64 row_begin, i64 row_end) {
  ok_k0_state st;
  st.scalar = a->scalar;
  const i64 n = a->cols;
  char *moved[3], *const *p = a->ptr;
  alignas(64) char pad0[64];
  alignas(64) char pad1[64];
  alignas(64) char pad2[16];
  const bool spread = !(a->col[0] && a->col[1]);
  for (i64 r = row_begin; r < row_end; ++r) {
    if (r || spread) {
      moved[0] = a->ptr[0] + r * a->row[0];
      moved[1] = a->ptr[1] + r * a->row[1];
      moved[2] = a->ptr[2] + r * a->row[2];
      p = moved;
    }
    if (spread) {  // one element in all lanes
      if (!a->col[0]) ok_pad<u32>(pad0, moved[0], 0, 0, 16), moved[0] = pad0;
      if (!a->col[1]) ok_pad<u32>(pad1, moved[1], 0, 0, 16), moved[1] = pad1;
    }
    {
      i64 m = n;
      char *const *q = p;
      char *after[3];
      if (n >= 4096 && (u64)p[2] % 16) m = (i64)(16 - (u64)p[2] % 16) / 1;
      for (i64 left = n;;) {
        const i64 whole = m / 16, rest = m % 16;
        if (whole) ok_k0_loop0(q, a->col, whole, 16, st);
        if (rest) {
          char *t[3];
          i64 ts[3];
          t[0] = pad0, ts[0] = 4;
          if (a->col[0]) ok_pad<u32>(pad0, q[0] + whole * 16 * a->col[0], a->col[0], rest, 16);
          t[1] = pad1, ts[1] = 4;
          if (a->col[1]) ok_pad<u32>(pad1, q[1] + whole * 16 * a->col[1], a->col[1], rest, 16);
          t[2] = pad2, ts[2] = 1;
          ok_k0_loop0(t, ts, 1, rest, st);
          ok_unpad<u8>(q[2] + whole * 16 * a->col[2], a->col[2], pad2, rest);
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
