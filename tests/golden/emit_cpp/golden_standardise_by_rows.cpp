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
template <bool Whole, int Leaves>
static OK_OPAQUE void ok_k0_loop0(char *const *p, const i64 *rs, const i64 *cs, ok_columns<32, 8> at, i64 live, ok_k0_state &st) {
  char *const p0 = p[0];
  const i64 c0 = cs[0];
  const i64 begin = Whole ? 0 : live / OK_N;
  const i64 end = Whole ? live / OK_N : begin + 1;
  for (i64 u = begin; u < end; ++u) {
    const i64 left = Whole ? OK_N : live - u * OK_N;
    vf32 a1_0 = at.k < 32 ? ok_c<vf32>(-0.0) : st.a1.acc[at.k % 32 * (st.w + 1) + u];
    const auto leaf = [&](i64 g, vf32 &a1) OK_INLINE {
      char *q0 = p0 + u * OK_N * 4 + g * 32 / Leaves * c0;
      const i64 count = at.count(g * 32 / Leaves);
      for (i64 j = 0; j < count; ++j) {
        const auto v0 = ok_load_part<f32>(q0, left);
        a1 = a1 + v0;
        q0 += 32 * c0;
      }
    };
    leaf(0, a1_0);
    if (Leaves > 1) {
      vf32 a1_1 = ok_c<vf32>(-0.0);
      leaf(1, a1_1);
      a1_0 = ok_sum_op::f(a1_0, a1_1);
    }
    st.a1.acc[at.k % 32 * (st.w + 1) + u] = a1_0;
  }
}
template <bool Whole, int Leaves>
static OK_OPAQUE void ok_k0_loop1(char *const *p, const i64 *rs, const i64 *cs, ok_columns<32, 8> at, i64 live, ok_k0_state &st) {
  char *const p0 = p[0];
  const i64 c0 = cs[0];
  const i64 begin = Whole ? 0 : live / OK_N;
  const i64 end = Whole ? live / OK_N : begin + 1;
  for (i64 u = begin; u < end; ++u) {
    const i64 left = Whole ? OK_N : live - u * OK_N;
    const auto v4 = st.v4[u];
    vf32 a7_0 = at.k < 32 ? ok_c<vf32>(-0.0) : st.a7.acc[at.k % 32 * (st.w + 1) + u];
    const auto leaf = [&](i64 g, vf32 &a7) OK_INLINE {
      char *q0 = p0 + u * OK_N * 4 + g * 32 / Leaves * c0;
      const i64 count = at.count(g * 32 / Leaves);
      for (i64 j = 0; j < count; ++j) {
        const auto v2 = ok_load_part<f32>(q0, left);
        const auto v5 = v2 - v4;
        const auto v6 = v5 * v5;
        a7 = a7 + v6;
        q0 += 32 * c0;
      }
    };
    leaf(0, a7_0);
    if (Leaves > 1) {
      vf32 a7_1 = ok_c<vf32>(-0.0);
      leaf(1, a7_1);
      a7_0 = ok_sum_op::f(a7_0, a7_1);
    }
    st.a7.acc[at.k % 32 * (st.w + 1) + u] = a7_0;
  }
}
extern "C" __attribute__((visibility("default"))) u64 ok_k0(const ok_args *a, i64 row_begin, i64 row_end) {
  if (!a) return ok_place<ok_k0_state>::scratch;
  ok_place<ok_k0_state> place;
  ok_k0_state &st = place.at(a->scratch);
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
    {
      st.a1.blocks = 0;
      i64 leaves = 1;
      for (i64 j = 0, m; j < n; j += m) {
        const i64 far = j < a->run ? 0 : j / a->run, near = j - far * a->run;
        m = a->run - near;
        if (n - j < m) m = n - j;
        if (512 - j % 512 < m) m = 512 - j % 512;
        char *q[3];
        q[0] = p[0] + far * a->far[0] + near * a->col[0];
        if (a->run < n) {  // the hardware does not look from run to run
          for (int line = 0; line < 512; line += 64) {
            __builtin_prefetch(q[0] + a->far[0] + line);
          }
        }
        char *t[3];
        leaves = j % 512 == 0 && j + m == n ? ok_leaves(m) : 1;
        for (i64 b = 0; b < m; b += 256) {
          for (i64 i = b; i < m && i < b + 32 / leaves; ++i) {
            t[0] = q[0] + i * a->col[0];
            const ok_columns<32, 8> at = {j % 512 + i, j + i, m - i};
            if (leaves > 1 && live >= OK_N) ok_k0_loop0<true, 2>(t, rs, a->col, at, live, st);
            if (leaves == 1 && live >= OK_N) ok_k0_loop0<true, 1>(t, rs, a->col, at, live, st);
            if (leaves > 1 && live % OK_N) ok_k0_loop0<false, 2>(t, rs, a->col, at, live, st);
            if (leaves == 1 && live % OK_N) ok_k0_loop0<false, 1>(t, rs, a->col, at, live, st);
          }
        }
        if ((j + m) % 512 == 0 || j + m == n) st.a1.close(leaves > 1 ? 32 / leaves : (j + m - 1) % 512 + 1, st.w);
      }
      for (i64 u = 0; u < st.w; ++u) {
        st.v1[u] = n ? st.a1.sum(st.w, u) + vf32{} : vf32{};
      }
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
    {
      st.a7.blocks = 0;
      i64 leaves = 1;
      for (i64 j = 0, m; j < n; j += m) {
        const i64 far = j < a->run ? 0 : j / a->run, near = j - far * a->run;
        m = a->run - near;
        if (n - j < m) m = n - j;
        if (512 - j % 512 < m) m = 512 - j % 512;
        char *q[3];
        q[0] = p[0] + far * a->far[0] + near * a->col[0];
        if (a->run < n) {  // the hardware does not look from run to run
          for (int line = 0; line < 512; line += 64) {
            __builtin_prefetch(q[0] + a->far[0] + line);
          }
        }
        char *t[3];
        leaves = j % 512 == 0 && j + m == n ? ok_leaves(m) : 1;
        for (i64 b = 0; b < m; b += 256) {
          for (i64 i = b; i < m && i < b + 32 / leaves; ++i) {
            t[0] = q[0] + i * a->col[0];
            const ok_columns<32, 8> at = {j % 512 + i, j + i, m - i};
            if (leaves > 1 && live >= OK_N) ok_k0_loop1<true, 2>(t, rs, a->col, at, live, st);
            if (leaves == 1 && live >= OK_N) ok_k0_loop1<true, 1>(t, rs, a->col, at, live, st);
            if (leaves > 1 && live % OK_N) ok_k0_loop1<false, 2>(t, rs, a->col, at, live, st);
            if (leaves == 1 && live % OK_N) ok_k0_loop1<false, 1>(t, rs, a->col, at, live, st);
          }
        }
        if ((j + m) % 512 == 0 || j + m == n) st.a7.close(leaves > 1 ? 32 / leaves : (j + m - 1) % 512 + 1, st.w);
      }
      for (i64 u = 0; u < st.w; ++u) {
        st.v7[u] = n ? st.a7.sum(st.w, u) + vf32{} : vf32{};
      }
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
  return ok_leave(0);
}
