// ok_k0 rCCC
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
  vi64 v1[32];
  vi8 v4[32];
  i64 seen;
  i64 w;
  union {
    struct { ok_find_panel<vf32, 32, ok_argmax_op> a1; ok_panel<vi8, 32, 1, ok_all_op> a4; };
  };
};
template <bool Whole, int Leaves>
static OK_OPAQUE void ok_k0_loop0(char *const *p, const i64 *rs, const i64 *cs, ok_columns<1, 8> at, i64 live, ok_k0_state &st) {
  char *const p0 = p[0];
  const i64 c0 = cs[0];
  const auto v2 = ok_splat<f32>(__builtin_bit_cast(f32, 0x41100000u));
  const i64 begin = Whole ? 0 : live / OK_N;
  const i64 end = Whole ? live / OK_N : begin + 1;
  for (i64 u = begin; u < end; ++u) {
    const i64 left = Whole ? OK_N : live - u * OK_N;
    vi8 a4 = st.a4.acc[u];
    const auto leaf = [&](i64 g) OK_INLINE {
      char *q0 = p0 + u * OK_N * 4 + g * 1 / Leaves * c0;
      vf32 a1 = ok_c<vf32>(-__builtin_inf());
      IVec<vf32> s1 = {};
      const i64 count = at.count(g * 1 / Leaves);
      for (i64 j = 0; j < count; ++j) {
        const auto v0 = ok_load_part<f32>(q0, left);
        ok_find_next<ok_argmax_op>(a1, s1, v0, ok_c<IVec<vf32>>(j));
        const auto v3 = v0 < v2;
        a4 = ok_and(a4, v3);
        q0 += 1 * c0;
      }
      st.a1.merge(u, a1, s1, at.column + g * 1 / Leaves, 1);
    };
    leaf(0);
    st.a4.acc[u] = a4;
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
  const i64 span = (n < 32 ? 4 : 32) * OK_N;
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
      st.a1.start(-__builtin_inf(), st.w);
      st.a4.start(-1, st.w);
      for (i64 j = 0, m; j < n; j += m) {
        const i64 far = j < a->run ? 0 : j / a->run, near = j - far * a->run;
        m = a->run - near;
        if (n - j < m) m = n - j;
        char *q[3];
        q[0] = p[0] + far * a->far[0] + near * a->col[0];
        if (a->run < n) {  // the hardware does not look from run to run
          for (int line = 0; line < 512; line += 64) {
            __builtin_prefetch(q[0] + a->far[0] + line);
          }
        }
        char *t[3];
        for (i64 b = 0; b < m; b += 8) {
          for (i64 i = b; i < m && i < b + 1 / 1; ++i) {
            t[0] = q[0] + i * a->col[0];
            const ok_columns<1, 8> at = {i, j + i, m - i};
            if (live >= OK_N) ok_k0_loop0<true, 1>(t, rs, a->col, at, live, st);
            if (live % OK_N) ok_k0_loop0<false, 1>(t, rs, a->col, at, live, st);
          }
        }
      }
      for (i64 u = 0; u < st.w; ++u) {
        st.v1[u] = ok_settle(st.a1.at[u]);
        st.v4[u] = ok_settle(st.a4.acc[u]);
      }
    }
    {
      char *const p1 = p[1];
      char *const p2 = p[2];
      for (i64 u = 0; u < st.w; ++u) {
        const i64 left = live - u * OK_N;
        const auto v1 = st.v1[u];
        const auto v4 = st.v4[u];
        char *const q1 = p1 + u * OK_N * 8;
        char *const q2 = p2 + u * OK_N * 1;
        ok_store_part(q1, v1, left);
        ok_store_part_bool(q2, v4, left);
        (void)left;
      }
    }
  }
  return ok_leave(0);
}
