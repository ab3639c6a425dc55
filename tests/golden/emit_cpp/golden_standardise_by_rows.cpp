// ok_k0 rCCC
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
  vf32 v1[8];
  vf32 v4[8];
  vf32 v7[8];
  vf32 v8[8];
  vf32 v9[8];
  ok_panel<vf32, 8, ok_sum_op> a1;
  ok_panel<vf32, 8, ok_sum_op> a7;
};
static OK_OPAQUE void ok_k0_loop0(char *const *p, const i64 *cs, i64 n, i64 live, ok_k0_state &st) {
  char *p0 = p[0];
  const i64 ahead0 = cs[0] < 2048 ? 0 : 4 * cs[0];
  for (i64 k = 0; k < n; ++k) {
    for (i64 u = 0; u * OK_N < live; ++u) {
      __builtin_prefetch(p0 + u * OK_N * 4 + ahead0);
    }
    for (i64 u = 0; u * OK_N < live; ++u) {
      const i64 left = live - u * OK_N;
      const auto v0 = ok_load_part<f32>(p0 + u * OK_N * 4, left);
      st.a1.acc[k & 31][u] = st.a1.acc[k & 31][u] + v0;
    }
    p0 += cs[0];
  }
}
static OK_OPAQUE void ok_k0_loop1(char *const *p, const i64 *cs, i64 n, i64 live, ok_k0_state &st) {
  char *p0 = p[0];
  const i64 ahead0 = cs[0] < 2048 ? 0 : 4 * cs[0];
  for (i64 k = 0; k < n; ++k) {
    for (i64 u = 0; u * OK_N < live; ++u) {
      __builtin_prefetch(p0 + u * OK_N * 4 + ahead0);
    }
    for (i64 u = 0; u * OK_N < live; ++u) {
      const i64 left = live - u * OK_N;
      const auto v4 = st.v4[u];
      const auto v2 = ok_load_part<f32>(p0 + u * OK_N * 4, left);
      const auto v5 = v2 - v4;
      const auto v6 = v5 * v5;
      st.a7.acc[k & 31][u] = st.a7.acc[k & 31][u] + v6;
    }
    p0 += cs[0];
  }
}
extern "C" __attribute__((visibility("default"))) u64 ok_k0(const ok_args *a, i64 row_begin, i64 row_end) {
  ok_k0_state st;
  st.scalar = a->scalar;
  const i64 n = a->cols;
  char *moved[3], *const *p = a->ptr;
  for (i64 r = row_begin; r < row_end; r += 8 * OK_N) {
    const i64 live = row_end - r < 8 * OK_N ? row_end - r : 8 * OK_N;
    for (int i = 0; i < 3; ++i) moved[i] = a->ptr[i] + r * a->row[i];
    p = moved;
    {
      for (i64 u = 0; u * OK_N < live; ++u) {
        const i64 left = live - u * OK_N;
      }
    }
    st.a1.start(-0.0);
    for (i64 j = 0; j < n; j += 512) {
      char *q[3];
      q[0] = p[0] + j * a->col[0];
      ok_k0_loop0(q, a->col, n - j < 512 ? n - j : 512, live, st);
      st.a1.close_block(-0.0);
    }
    for (int u = 0; u < 8; ++u) {
      st.v1[u] = n ? st.a1.pairs[u].sum() : vf32{};
    }
    {
      char *const p1 = p[1];
      const auto v3 = ok_splat<f32>(*(const ok_vec<f32>::one *)(st.scalar + 0));
      for (i64 u = 0; u * OK_N < live; ++u) {
        const i64 left = live - u * OK_N;
        const auto v1 = st.v1[u];
        const auto v4 = st.v4[u] = v1 / v3;
        ok_store_part(p1 + u * OK_N * 4, v4, left);
      }
    }
    st.a7.start(-0.0);
    for (i64 j = 0; j < n; j += 512) {
      char *q[3];
      q[0] = p[0] + j * a->col[0];
      ok_k0_loop1(q, a->col, n - j < 512 ? n - j : 512, live, st);
      st.a7.close_block(-0.0);
    }
    for (int u = 0; u < 8; ++u) {
      st.v7[u] = n ? st.a7.pairs[u].sum() : vf32{};
    }
    {
      char *const p2 = p[2];
      const auto v3 = ok_splat<f32>(*(const ok_vec<f32>::one *)(st.scalar + 0));
      for (i64 u = 0; u * OK_N < live; ++u) {
        const i64 left = live - u * OK_N;
        const auto v7 = st.v7[u];
        const auto v8 = st.v8[u] = v7 / v3;
        const auto v9 = st.v9[u] = ok_sqrt(v8);
        ok_store_part(p2 + u * OK_N * 4, v9, left);
      }
    }
  }
  return 0;
}
