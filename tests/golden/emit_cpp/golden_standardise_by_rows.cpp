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
  vf32 v1[64];
  vf32 v4[64];
  vf32 v7[64];
  vf32 v8[64];
  vf32 v9[64];
  i64 w;
  union {
    struct { ok_blocked_panel<vf32, 64, 32, ok_sum_op> a1; };
    struct { ok_blocked_panel<vf32, 64, 32, ok_sum_op> a7; };
  };
};
template <bool Whole>
static OK_OPAQUE void ok_k0_loop0(char *const *p, const i64 *rs, const i64 *cs, i64 k, i64 count, i64 live, ok_k0_state &st) {
  char *const p0 = p[0];
  const i64 c0 = cs[0];
  const i64 begin = Whole ? 0 : live / OK_N;
  const i64 end = Whole ? live / OK_N : begin + 1;
  for (i64 u = begin; u < end; ++u) {
    const i64 left = Whole ? OK_N : live - u * OK_N;
    char *q0 = p0 + u * OK_N * 4;
    vf32 a1 = k < 32 ? ok_c<vf32>(-0.0) : st.a1.acc[k % 32 * st.w + u];
    for (i64 j = 0; j < count; ++j) {
      const auto v0 = ok_load_part<f32>(q0, left);
      a1 = a1 + v0;
      q0 += c0;
    }
    st.a1.acc[k % 32 * st.w + u] = a1;
  }
}
template <bool Whole>
static OK_OPAQUE void ok_k0_loop1(char *const *p, const i64 *rs, const i64 *cs, i64 k, i64 count, i64 live, ok_k0_state &st) {
  char *const p0 = p[0];
  const i64 c0 = cs[0];
  const i64 begin = Whole ? 0 : live / OK_N;
  const i64 end = Whole ? live / OK_N : begin + 1;
  for (i64 u = begin; u < end; ++u) {
    const i64 left = Whole ? OK_N : live - u * OK_N;
    const auto v4 = st.v4[u];
    char *q0 = p0 + u * OK_N * 4;
    vf32 a7 = k < 32 ? ok_c<vf32>(-0.0) : st.a7.acc[k % 32 * st.w + u];
    for (i64 j = 0; j < count; ++j) {
      const auto v2 = ok_load_part<f32>(q0, left);
      const auto v5 = v2 - v4;
      const auto v6 = v5 * v5;
      a7 = a7 + v6;
      q0 += c0;
    }
    st.a7.acc[k % 32 * st.w + u] = a7;
  }
}
extern "C" __attribute__((visibility("default"))) u64 ok_k0(const ok_args *a, i64 row_begin, i64 row_end) {
  ok_k0_state st;
  st.scalar = a->scalar;
  const i64 n = a->cols;
  char *moved[3], *const *p = a->ptr;
  const i64 *const rs = a->row;
  const i64 span = (n < 32 ? 4 : 64) * OK_N;
  for (i64 r = row_begin; r < row_end; r += span) {
    const i64 live = row_end - r < span ? row_end - r : span;
    st.w = (live + OK_N - 1) / OK_N;
    for (int i = 0; i < 3; ++i) moved[i] = a->ptr[i] + r * rs[i];
    p = moved;
    {
      for (i64 u = 0; u < st.w; ++u) {
        const i64 left = live - u * OK_N;
        (void)left;
      }
    }
    st.a1.blocks = 0;
    for (i64 j = 0; j < n; j += 512) {
      const i64 m = n - j < 512 ? n - j : 512;
      char *q[3];
      i64 cs[3];
      cs[0] = 32 * a->col[0];
      for (i64 b = 0; b < m; b += 256) {
        for (i64 k = b; k < m && k < b + 32; ++k) {
          const i64 rest = (m - k + 31) / 32;
          const i64 count = rest < 8 ? rest : 8;
          q[0] = p[0] + (j + k) * a->col[0];
          if (live >= OK_N) ok_k0_loop0<true>(q, rs, cs, k, count, live, st);
          if (live % OK_N) ok_k0_loop0<false>(q, rs, cs, k, count, live, st);
        }
      }
      st.a1.close(m, st.w);
    }
    for (i64 u = 0; u < st.w; ++u) {
      st.v1[u] = n ? st.a1.sum(st.w, u) + vf32{} : vf32{};
    }
    {
      char *const p1 = p[1];
      const auto v3 = ok_splat<f32>(*(const ok_vec<f32>::one *)(st.scalar + 0));
      for (i64 u = 0; u < st.w; ++u) {
        const i64 left = live - u * OK_N;
        const auto v1 = st.v1[u];
        char *const q1 = p1 + u * OK_N * 4;
        const auto v4 = st.v4[u] = v1 / v3;
        ok_store_part(q1, v4, left);
        (void)left;
      }
    }
    st.a7.blocks = 0;
    for (i64 j = 0; j < n; j += 512) {
      const i64 m = n - j < 512 ? n - j : 512;
      char *q[3];
      i64 cs[3];
      cs[0] = 32 * a->col[0];
      for (i64 b = 0; b < m; b += 256) {
        for (i64 k = b; k < m && k < b + 32; ++k) {
          const i64 rest = (m - k + 31) / 32;
          const i64 count = rest < 8 ? rest : 8;
          q[0] = p[0] + (j + k) * a->col[0];
          if (live >= OK_N) ok_k0_loop1<true>(q, rs, cs, k, count, live, st);
          if (live % OK_N) ok_k0_loop1<false>(q, rs, cs, k, count, live, st);
        }
      }
      st.a7.close(m, st.w);
    }
    for (i64 u = 0; u < st.w; ++u) {
      st.v7[u] = n ? st.a7.sum(st.w, u) + vf32{} : vf32{};
    }
    {
      char *const p2 = p[2];
      const auto v3 = ok_splat<f32>(*(const ok_vec<f32>::one *)(st.scalar + 0));
      for (i64 u = 0; u < st.w; ++u) {
        const i64 left = live - u * OK_N;
        const auto v7 = st.v7[u];
        char *const q2 = p2 + u * OK_N * 4;
        const auto v8 = st.v8[u] = v7 / v3;
        const auto v9 = st.v9[u] = ok_sqrt(v8);
        ok_store_part(q2, v9, left);
        (void)left;
      }
    }
  }
  return 0;
}
