// ok_k0 CCC
//   once:
//     v3 = scalar 0 : float64
//     v4 = sqrt v3
//   loop:
//     v0 = load 0 : bool
//     v1 = load 1 : float32
//     v2 = float64 v1
//     v5 = multiply v2 v4
//     v6 = where v0 v5 v3
//     store 2 v6
struct ok_k0_state {
  const u64 *scalar;
  vf64 v4;
};
static OK_OPAQUE void ok_k0_loop0(char *const *p, const i64 *cs, i64 steps, i64 valid, ok_k0_state &st) {
  char *p0 = p[0];
  char *p1 = p[1];
  char *p2 = p[2];
  const i64 c0 = cs[0];
  const i64 c1 = cs[1];
  const auto v3 = ok_splat<f64>(*(const ok_vec<f64>::one *)(st.scalar + 0));
  const auto v4 = st.v4;
  for (; steps > 0; --steps) {
    {
      const auto v0 = ok_load_bool(p0);
      const auto v1 = ok_load<f32>(p1);
      const auto v2 = ok_cast<f64>(v1);
      const auto v5 = v2 * v4;
      const auto v6 = ok_sel(v0, v5, v3);
      ok_store(p2, v6);
    }
    p0 += 8 * c0;
    p1 += 8 * c1;
    p2 += 8 * 8;
  }
  (void)valid;
}
extern "C" __attribute__((visibility("default"))) u64 ok_k0(const ok_args *a, i64 row_begin, i64 row_end) {
  ok_k0_state st;
  st.scalar = a->scalar;
  const i64 n = a->cols;
  char *moved[3], *const *p = a->ptr;
  {
    const auto v3 = ok_splat<f64>(*(const ok_vec<f64>::one *)(st.scalar + 0));
    const auto v4 = st.v4 = ok_sqrt(v3);
  }
  alignas(64) char pad0[8];
  alignas(64) char pad1[32];
  alignas(64) char pad2[64];
  const bool spread = !(a->col[0] && a->col[1]);
  for (i64 r = row_begin; r < row_end; ++r) {
    if (r || spread) {
      moved[0] = a->ptr[0] + r * a->row[0];
      moved[1] = a->ptr[1] + r * a->row[1];
      moved[2] = a->ptr[2] + r * a->row[2];
      p = moved;
    }
    if (spread) {  // one element in all lanes
      if (!a->col[0]) ok_pad<u8>(pad0, moved[0], 0, 0, 8), moved[0] = pad0;
      if (!a->col[1]) ok_pad<u32>(pad1, moved[1], 0, 0, 8), moved[1] = pad1;
    }
    {
      i64 m = n;
      char *const *q = p;
      char *after[3];
      if (n >= 4096 && (u64)p[2] % 64) m = (i64)(64 - (u64)p[2] % 64) / 8;
      for (i64 left = n;;) {
        const i64 whole = m / 8, rest = m % 8;
        if (whole) ok_k0_loop0(q, a->col, whole, 8, st);
        if (rest) {
          char *t[3];
          i64 ts[3];
          t[0] = pad0, ts[0] = 1;
          if (a->col[0]) ok_pad<u8>(pad0, q[0] + whole * 8 * a->col[0], a->col[0], rest, 8);
          t[1] = pad1, ts[1] = 4;
          if (a->col[1]) ok_pad<u32>(pad1, q[1] + whole * 8 * a->col[1], a->col[1], rest, 8);
          t[2] = pad2, ts[2] = 8;
          ok_k0_loop0(t, ts, 1, rest, st);
          ok_unpad<u64>(q[2] + whole * 8 * a->col[2], a->col[2], pad2, rest);
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
