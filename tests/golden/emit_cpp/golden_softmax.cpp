// ok_k0 CCCC
//   loop:
//     v0 = load 0 : float32
//     v1 = fold max v0
//   loop:
//     v2 = load 0 : float32
//     v3 = subtract v2 v1
//     v4 = exp v3
//     v5 = fold sum v4
//     store 1 v4
//   loop:
//     v6 = load 2 : float32
//     v7 = divide v6 v5
//     store 3 v7
struct ok_k0_state {
  const u64 *scalar;
  vf32 v1;
  vf32 v5;
  ok_fold<vf32, 2, ok_max_op> a1;
  ok_fold<vf32, 2, ok_sum_op> a5;
};
static OK_OPAQUE void ok_k0_loop0(char *const *p, const i64 *cs, i64 steps, i64 valid, ok_k0_state &st) {
  char *p0 = p[0];
  const vf32 idle1 = ok_c<vf32>(-__builtin_inf());
  const auto m1_0 = IVec<vf32>{OK_IOTA} < (ok_elt<IVec<vf32>>)valid;
  vf32 a1_0 = st.a1.acc[0];
  const auto m1_1 = IVec<vf32>{OK_IOTA} + (ok_elt<IVec<vf32>>)16 < (ok_elt<IVec<vf32>>)valid;
  vf32 a1_1 = st.a1.acc[1];
  for (; steps > 0; --steps) {
    {
      const auto v0 = ok_load<f32>(p0);
      a1_0 = ok_max(a1_0, ok_sel(m1_0, v0, idle1));
    }
    {
      const auto v0 = ok_load<f32>(p0 + 16 * 4);
      a1_1 = ok_max(a1_1, ok_sel(m1_1, v0, idle1));
    }
    p0 += 32 * 4;
  }
  st.a1.acc[0] = a1_0;
  st.a1.acc[1] = a1_1;
  (void)valid;
}
static OK_OPAQUE void ok_k0_loop1(char *const *p, const i64 *cs, i64 steps, i64 valid, ok_k0_state &st) {
  char *p0 = p[0];
  char *p1 = p[1];
  const auto v1 = st.v1;
  const vf32 idle5 = ok_c<vf32>(-0.0);
  const auto m5_0 = IVec<vf32>{OK_IOTA} < (ok_elt<IVec<vf32>>)valid;
  vf32 a5_0 = st.a5.acc[0];
  const auto m5_1 = IVec<vf32>{OK_IOTA} + (ok_elt<IVec<vf32>>)16 < (ok_elt<IVec<vf32>>)valid;
  vf32 a5_1 = st.a5.acc[1];
  for (; steps > 0; --steps) {
    {
      const auto v2 = ok_load<f32>(p0);
      const auto v3 = v2 - v1;
      const auto v4 = ok_exp(v3);
      a5_0 = a5_0 + ok_sel(m5_0, v4, idle5);
      ok_store(p1, v4);
    }
    {
      const auto v2 = ok_load<f32>(p0 + 16 * 4);
      const auto v3 = v2 - v1;
      const auto v4 = ok_exp(v3);
      a5_1 = a5_1 + ok_sel(m5_1, v4, idle5);
      ok_store(p1 + 16 * 4, v4);
    }
    p0 += 32 * 4;
    p1 += 32 * 4;
  }
  st.a5.acc[0] = a5_0;
  st.a5.acc[1] = a5_1;
  (void)valid;
}
static OK_OPAQUE void ok_k0_loop2(char *const *p, const i64 *cs, i64 steps, i64 valid, ok_k0_state &st) {
  char *p2 = p[2];
  char *p3 = p[3];
  const auto v5 = st.v5;
  for (; steps > 0; --steps) {
    {
      const auto v6 = ok_load<f32>(p2);
      const auto v7 = v6 / v5;
      ok_store(p3, v7);
    }
    {
      const auto v6 = ok_load<f32>(p2 + 16 * 4);
      const auto v7 = v6 / v5;
      ok_store(p3 + 16 * 4, v7);
    }
    p2 += 32 * 4;
    p3 += 32 * 4;
  }
  (void)valid;
}
extern "C" __attribute__((visibility("default"))) u64 ok_k0(const ok_args *a, i64 row_begin, i64 row_end) {
  if (!a) return ok_place<ok_k0_state>::scratch;
  ok_place<ok_k0_state> place;
  ok_k0_state &st = place.at(a->scratch);
  st.scalar = a->scalar;
  const i64 n = a->cols;
  char *moved[4], *const *p = a->ptr;
  for (i64 r = row_begin; r < row_end; ++r) {
    if (r) {
      moved[0] = a->ptr[0] + r * a->row[0];
      moved[1] = a->ptr[1] + r * a->row[1];
      moved[2] = a->ptr[2] + r * a->row[2];
      moved[3] = a->ptr[3] + r * a->row[3];
      p = moved;
    }
    st.a1.start(-__builtin_inf());
    for (i64 j = 0, m; j < n; j += m) {
      const i64 far = j < a->run ? 0 : j / a->run, near = j - far * a->run;
      m = a->run - near;
      if (n - j < m) m = n - j;
      char *q[4];
      q[0] = p[0] + far * a->far[0] + near * a->col[0];
      if (a->run < n) {  // the hardware does not look from run to run
        for (int line = 0; line < 512; line += 64) {
          __builtin_prefetch(q[0] + a->far[0] + line);
        }
      }
      const i64 whole = m / 32, rest = m % 32;
      if (whole) ok_k0_loop0(q, a->col, whole, 32, st);
      if (rest) {
        char *t[4];
        i64 ts[4];
        alignas(64) char pad0[128];
        t[0] = pad0, ts[0] = 4;
        ok_pad<u32>(pad0, q[0] + whole * 32 * a->col[0], a->col[0], rest, 32);
        ok_k0_loop0(t, ts, 1, rest, st);
      }
    }
    st.v1 = ok_settle(st.a1.total());
    st.a5.start(-0.0);
    for (i64 j = 0, m; j < n; j += m) {
      const i64 far = j < a->run ? 0 : j / a->run, near = j - far * a->run;
      m = a->run - near;
      if (n - j < m) m = n - j;
      if (512 - j % 512 < m) m = 512 - j % 512;
      char *q[4];
      q[0] = p[0] + far * a->far[0] + near * a->col[0];
      q[1] = p[1] + far * a->far[1] + near * a->col[1];
      if (a->run < n) {  // the hardware does not look from run to run
        for (int line = 0; line < 512; line += 64) {
          __builtin_prefetch(q[0] + a->far[0] + line);
        }
      }
      const i64 whole = m / 32, rest = m % 32;
      if (whole) ok_k0_loop1(q, a->col, whole, 32, st);
      if (rest) {
        char *t[4];
        i64 ts[4];
        alignas(64) char pad0[128];
        t[0] = pad0, ts[0] = 4;
        ok_pad<u32>(pad0, q[0] + whole * 32 * a->col[0], a->col[0], rest, 32);
        alignas(64) char pad1[128];
        t[1] = pad1, ts[1] = 4;
        ok_k0_loop1(t, ts, 1, rest, st);
        ok_unpad<u32>(q[1] + whole * 32 * a->col[1], a->col[1], pad1, rest);
      }
      if ((j + m) % 512 == 0 || j + m == n) st.a5.close_block(-0.0);
    }
    st.v5 = n ? st.a5.pairs.sum() + vf32{} : vf32{};
    for (i64 j = 0, m; j < n; j += m) {
      const i64 far = j < a->run ? 0 : j / a->run, near = j - far * a->run;
      m = a->run - near;
      if (n - j < m) m = n - j;
      char *q[4];
      q[2] = p[2] + far * a->far[2] + near * a->col[2];
      q[3] = p[3] + far * a->far[3] + near * a->col[3];
      if (a->run < n) {  // the hardware does not look from run to run
        for (int line = 0; line < 512; line += 64) {
          __builtin_prefetch(q[2] + a->far[2] + line);
        }
      }
      const i64 whole = m / 32, rest = m % 32;
      if (whole) ok_k0_loop2(q, a->col, whole, 32, st);
      if (rest) {
        char *t[4];
        i64 ts[4];
        alignas(64) char pad2[128];
        t[2] = pad2, ts[2] = 4;
        ok_pad<u32>(pad2, q[2] + whole * 32 * a->col[2], a->col[2], rest, 32);
        alignas(64) char pad3[128];
        t[3] = pad3, ts[3] = 4;
        ok_k0_loop2(t, ts, 1, rest, st);
        ok_unpad<u32>(q[3] + whole * 32 * a->col[3], a->col[3], pad3, rest);
      }
    }
  }
  return ok_leave(0);
}
