// ok_k0 GGG
//   once:
//     v3 = scalar 0 : float32
//   loop:
//     v0 = load 0 : float32
//     v1 = fold sum v0
//   row:
//     v4 = divide v1 v3
//     store 1 v4
//   loop:
//     v2 = load 0 : float32
//     v5 = subtract v2 v4
//     v6 = square v5
//     v7 = fold sum v6
//   row:
//     v8 = divide v7 v3
//     v9 = sqrt v8
//     store 2 v9
struct ok_k0_state {
  const u64 *scalar;
  vf32 v1;
  vf32 v4;
  vf32 v7;
  vf32 v8;
  vf32 v9;
  ok_fold<vf32, 2, ok_sum_op> a1;
  ok_fold<vf32, 2, ok_sum_op> a7;
};
static OK_OPAQUE void ok_k0_loop0(char *const *p, const i64 *cs, i64 steps, i64 valid, ok_k0_state &st) {
  char *p0 = p[0];
  const i64 c0 = cs[0];
  const vf32 idle1 = ok_c<vf32>(-0.0);
  const auto m1_0 = IVec<vf32>{OK_IOTA} < (ok_elt<IVec<vf32>>)valid;
  vf32 a1_0 = st.a1.acc[0];
  const auto m1_1 = IVec<vf32>{OK_IOTA} + (ok_elt<IVec<vf32>>)16 < (ok_elt<IVec<vf32>>)valid;
  vf32 a1_1 = st.a1.acc[1];
  for (; steps > 0; --steps) {
    {
      const auto v0 = ok_gather<f32>(p0, c0);
      a1_0 = a1_0 + ok_sel(m1_0, v0, idle1);
    }
    {
      const auto v0 = ok_gather<f32>(p0 + 16 * c0, c0);
      a1_1 = a1_1 + ok_sel(m1_1, v0, idle1);
    }
    p0 += 32 * c0;
  }
  st.a1.acc[0] = a1_0;
  st.a1.acc[1] = a1_1;
  (void)valid;
}
static OK_OPAQUE void ok_k0_loop1(char *const *p, const i64 *cs, i64 steps, i64 valid, ok_k0_state &st) {
  char *p0 = p[0];
  const i64 c0 = cs[0];
  const auto v4 = st.v4;
  const vf32 idle7 = ok_c<vf32>(-0.0);
  const auto m7_0 = IVec<vf32>{OK_IOTA} < (ok_elt<IVec<vf32>>)valid;
  vf32 a7_0 = st.a7.acc[0];
  const auto m7_1 = IVec<vf32>{OK_IOTA} + (ok_elt<IVec<vf32>>)16 < (ok_elt<IVec<vf32>>)valid;
  vf32 a7_1 = st.a7.acc[1];
  for (; steps > 0; --steps) {
    {
      const auto v2 = ok_gather<f32>(p0, c0);
      const auto v5 = v2 - v4;
      const auto v6 = v5 * v5;
      a7_0 = a7_0 + ok_sel(m7_0, v6, idle7);
    }
    {
      const auto v2 = ok_gather<f32>(p0 + 16 * c0, c0);
      const auto v5 = v2 - v4;
      const auto v6 = v5 * v5;
      a7_1 = a7_1 + ok_sel(m7_1, v6, idle7);
    }
    p0 += 32 * c0;
  }
  st.a7.acc[0] = a7_0;
  st.a7.acc[1] = a7_1;
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
    st.a1.start(-0.0);
    for (i64 j = 0, m; j < n; j += m) {
      const i64 far = j < a->run ? 0 : j / a->run, near = j - far * a->run;
      m = a->run - near;
      if (n - j < m) m = n - j;
      if (512 - j % 512 < m) m = 512 - j % 512;
      char *q[3];
      q[0] = p[0] + far * a->far[0] + near * a->col[0];
      if (a->run < n) {  // the hardware does not look from run to run
        for (int line = 0; line < 512; line += 64) {
        }
      }
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
      if ((j + m) % 512 == 0 || j + m == n) st.a1.close_block(-0.0);
    }
    st.v1 = n ? st.a1.pairs.sum() + vf32{} : vf32{};
    {
      const auto v1 = st.v1;
      const auto v3 = ok_splat<f32>(*(const ok_vec<f32>::one *)(st.scalar + 0));
      const auto v4 = st.v4 = v1 / v3;
      *(ok_vec<f32>::one *)p[1] = v4[0];
    }
    st.a7.start(-0.0);
    for (i64 j = 0, m; j < n; j += m) {
      const i64 far = j < a->run ? 0 : j / a->run, near = j - far * a->run;
      m = a->run - near;
      if (n - j < m) m = n - j;
      if (512 - j % 512 < m) m = 512 - j % 512;
      char *q[3];
      q[0] = p[0] + far * a->far[0] + near * a->col[0];
      if (a->run < n) {  // the hardware does not look from run to run
        for (int line = 0; line < 512; line += 64) {
        }
      }
      const i64 whole = m / 32, rest = m % 32;
      if (whole) ok_k0_loop1(q, a->col, whole, 32, st);
      if (rest) {
        char *t[3];
        i64 ts[3];
        alignas(64) char pad0[128];
        t[0] = pad0, ts[0] = 4;
        ok_pad<u32>(pad0, q[0] + whole * 32 * a->col[0], a->col[0], rest, 32);
        ok_k0_loop1(t, ts, 1, rest, st);
      }
      if ((j + m) % 512 == 0 || j + m == n) st.a7.close_block(-0.0);
    }
    st.v7 = n ? st.a7.pairs.sum() + vf32{} : vf32{};
    {
      const auto v3 = ok_splat<f32>(*(const ok_vec<f32>::one *)(st.scalar + 0));
      const auto v7 = st.v7;
      const auto v8 = st.v8 = v7 / v3;
      const auto v9 = st.v9 = ok_sqrt(v8);
      *(ok_vec<f32>::one *)p[2] = v9[0];
    }
  }
  return ok_leave(0);
}
