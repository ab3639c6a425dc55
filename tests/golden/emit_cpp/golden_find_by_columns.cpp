// ok_k0 GGG
//   once:
//     v2 = np.float32(9.0)
//   loop:
//     v0 = load 0 : float32
//     v1 = fold argmax v0
//     v3 = less v0 v2
//     v4 = fold all v3
//   row:
//     store 1 v1
//     store 2 v4
struct ok_k0_state {
  const u64 *scalar;
  vi64 v1;
  vi8 v4;
  ok_find<vf32, 2, ok_argmax_op> a1;
  ok_fold<vi8, 2, ok_all_op> a4;
  i64 seen;
};
static OK_OPAQUE void ok_k0_loop0(char *const *p, const i64 *cs, i64 steps, i64 valid, ok_k0_state &st) {
  char *p0 = p[0];
  const i64 c0 = cs[0];
  const auto v2 = ok_splat<f32>(__builtin_bit_cast(f32, 0x41100000u));
  const vf32 idle1 = ok_c<vf32>(-__builtin_inf());
  const auto m1_0 = IVec<vf32>{OK_IOTA} < (ok_elt<IVec<vf32>>)valid;
  vf32 a1_0 = st.a1.acc[0];
  IVec<vf32> s1_0 = st.a1.step[0];
  const auto m1_1 = IVec<vf32>{OK_IOTA} + (ok_elt<IVec<vf32>>)16 < (ok_elt<IVec<vf32>>)valid;
  vf32 a1_1 = st.a1.acc[1];
  IVec<vf32> s1_1 = st.a1.step[1];
  IVec<vf32> here1 = ok_c<IVec<vf32>>(st.seen);
  const vi8 idle4 = ok_c<vi8>(-1);
  const auto m4_0 = IVec<vi8>{OK_IOTA} < (ok_elt<IVec<vi8>>)valid;
  vi8 a4_0 = st.a4.acc[0];
  const auto m4_1 = IVec<vi8>{OK_IOTA} + (ok_elt<IVec<vi8>>)16 < (ok_elt<IVec<vi8>>)valid;
  vi8 a4_1 = st.a4.acc[1];
  for (; steps > 0; --steps) {
    {
      const auto v0 = ok_gather<f32>(p0, c0);
      ok_find_next<ok_argmax_op>(a1_0, s1_0, ok_sel(m1_0, v0, idle1), here1);
      const auto v3 = v0 < v2;
      a4_0 = ok_and(a4_0, ok_sel(m4_0, v3, idle4));
    }
    {
      const auto v0 = ok_gather<f32>(p0 + 16 * c0, c0);
      ok_find_next<ok_argmax_op>(a1_1, s1_1, ok_sel(m1_1, v0, idle1), here1);
      const auto v3 = v0 < v2;
      a4_1 = ok_and(a4_1, ok_sel(m4_1, v3, idle4));
    }
    p0 += 32 * c0;
    here1 += 1;
  }
  st.a1.acc[0] = a1_0;
  st.a4.acc[0] = a4_0;
  st.a1.step[0] = s1_0;
  st.a1.acc[1] = a1_1;
  st.a4.acc[1] = a4_1;
  st.a1.step[1] = s1_1;
  st.seen = here1[0];
  (void)valid;
}
extern "C" __attribute__((visibility("default"))) u64 ok_k0(const ok_args *a, i64 row_begin, i64 row_end) {
  if (!a) return ok_place<ok_k0_state>::scratch;
  ok_place<ok_k0_state> place;
  ok_k0_state &st = place.at(a->scratch);
  st.scalar = a->scalar;
  const i64 n = a->cols;
  char *moved[3], *const *p = a->ptr;
  {
  }
  for (i64 r = row_begin; r < row_end; ++r) {
    if (r) {
      moved[0] = a->ptr[0] + r * a->row[0];
      moved[1] = a->ptr[1] + r * a->row[1];
      moved[2] = a->ptr[2] + r * a->row[2];
      p = moved;
    }
    st.a1.start(-__builtin_inf());
    st.a4.start(-1);
    for (i64 j = 0, m; j < n; j += m) {
      const i64 far = j < a->run ? 0 : j / a->run, near = j - far * a->run;
      m = a->run - near;
      if (n - j < m) m = n - j;
      if (2048 - j % 2048 < m) m = 2048 - j % 2048;
      char *q[3];
      q[0] = p[0] + far * a->far[0] + near * a->col[0];
      if (a->run < n) {  // the hardware does not look from run to run
        for (int line = 0; line < 512; line += 64) {
        }
      }
      if (j % 2048 == 0) st.seen = 0;
      const i64 whole = m / 32, rest = m % 32;
      if (whole) ok_k0_loop0(q, a->col, whole, 32, st);
      if (rest) {
        char *t[3];
        i64 ts[3];
        alignas(64) char pad0[128];
        t[0] = pad0, ts[0] = 4;
        ok_pad<u32>(pad0, q[0] + whole * 32 * a->col[0], a->col[0], rest, 32);
        ok_k0_loop0(t, ts, 1, rest, st);
      }
      if ((j + m) % 2048 == 0 || j + m == n) st.a1.close((j + m - 1) / 2048 * 2048);
    }
    st.v1 = ok_settle(st.a1.total());
    st.v4 = ok_settle(st.a4.total());
    {
      const auto v1 = st.v1;
      const auto v4 = st.v4;
      *(ok_vec<i64>::one *)p[1] = v1[0];
      *(u8 *)p[2] = (u8)(v4[0] & 1);
    }
  }
  return ok_leave(0);
}
