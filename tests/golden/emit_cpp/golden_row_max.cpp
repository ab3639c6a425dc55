// ok_k0 CG
//   loop:
//     v0 = load 0 : int32
//     v1 = fold max v0
//   row:
//     store 1 v1
struct ok_k0_state {
  const u64 *scalar;
  vi32 v1;
  ok_fold<vi32, 2, ok_max_op> a1;
};
static OK_OPAQUE void ok_k0_loop0(char *const *p, const i64 *cs, i64 steps, i64 valid, ok_k0_state &st) {
  char *p0 = p[0];
  const vi32 idle1 = ok_c<vi32>(-2147483648);
  const auto m1_0 = IVec<vi32>{OK_IOTA} < (ok_elt<IVec<vi32>>)valid;
  vi32 a1_0 = st.a1.acc[0];
  const auto m1_1 = IVec<vi32>{OK_IOTA} + (ok_elt<IVec<vi32>>)16 < (ok_elt<IVec<vi32>>)valid;
  vi32 a1_1 = st.a1.acc[1];
  for (; steps > 0; --steps) {
    {
      const auto v0 = ok_load<i32>(p0);
      a1_0 = ok_max(a1_0, ok_sel(m1_0, v0, idle1));
    }
    {
      const auto v0 = ok_load<i32>(p0 + 16 * 4);
      a1_1 = ok_max(a1_1, ok_sel(m1_1, v0, idle1));
    }
    p0 += 32 * 4;
  }
  st.a1.acc[0] = a1_0;
  st.a1.acc[1] = a1_1;
  (void)valid;
}
extern "C" __attribute__((visibility("default"))) u64 ok_k0(const ok_args *a, i64 row_begin, i64 row_end) {
  if (!a) return ok_place<ok_k0_state>::scratch;
  ok_place<ok_k0_state> place;
  ok_k0_state &st = place.at(a->scratch);
  st.scalar = a->scalar;
  const i64 n = a->cols;
  char *moved[2], *const *p = a->ptr;
  for (i64 r = row_begin; r < row_end; ++r) {
    if (r) {
      moved[0] = a->ptr[0] + r * a->row[0];
      moved[1] = a->ptr[1] + r * a->row[1];
      p = moved;
    }
    st.a1.start(-2147483648);
    for (i64 j = 0, m; j < n; j += m) {
      const i64 far = j < a->run ? 0 : j / a->run, near = j - far * a->run;
      m = a->run - near;
      if (n - j < m) m = n - j;
      char *q[2];
      q[0] = p[0] + far * a->far[0] + near * a->col[0];
      if (a->run < n) {  // the hardware does not look from run to run
        for (int line = 0; line < 512; line += 64) {
          __builtin_prefetch(q[0] + a->far[0] + line);
        }
      }
      const i64 whole = m / 32, rest = m % 32;
      if (whole) ok_k0_loop0(q, a->col, whole, 32, st);
      if (rest) {
        char *t[2];
        i64 ts[2];
        alignas(64) char pad0[128];
        t[0] = pad0, ts[0] = 4;
        ok_pad<u32>(pad0, q[0] + whole * 32 * a->col[0], a->col[0], rest, 32);
        ok_k0_loop0(t, ts, 1, rest, st);
      }
    }
    st.v1 = ok_settle(st.a1.total());
    {
      const auto v1 = st.v1;
      *(ok_vec<i32>::one *)p[1] = v1[0];
    }
  }
  return ok_leave(0);
}
