// ok_k0
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
extern "C" __global__ void ok_k0(const ok_args<4, 2, 1> a) {
  const i64 rows = a.extent[0];
  const i64 n = a.extent[1];
  const i64 warp = ok_thread() / 32, lane = threadIdx.x % 32;
  const i64 warps = ok_threads() / 32;
  for (i64 r = warp; r < rows; r += warps) {
    const i64 i0 = r;
    char *const p0 = a.ptr[0] + i0 * a.stride[0][0];
    char *const p1 = a.ptr[1] + warp * a.stride[1][0];
    char *const p2 = a.ptr[2] + warp * a.stride[2][0];
    char *const p3 = a.ptr[3] + i0 * a.stride[3][0];
    vf32 a1 = ok_c<vf32>(-__builtin_inf());
    for (i64 j = lane; j < n; j += 32) {
      const i64 i1 = j;
      char *const q0 = p0 + i1 * a.stride[0][1];
      const auto v0 = ok_load<f32>(q0);
      a1 = ok_max(a1, v0);
    }
    const auto v1 = ok_settle(ok_total<ok_max_op>(a1));
    vf32 a5 = ok_c<vf32>(-0.0);
    ok_pairs<vf32, ok_sum_op> b5;
    b5.blocks = 0;
    for (i64 begin = 0; begin < n; begin += 512) {
      const i64 end = n - begin < 512 ? n : begin + 512;
      for (i64 j = begin + lane; j < end; j += 32) {
        const i64 i1 = j;
        char *const q0 = p0 + i1 * a.stride[0][1];
        char *const q1 = p1 + i1 * a.stride[1][1];
        const auto v2 = ok_load<f32>(q0);
        const auto v3 = v2 - v1;
        const auto v4 = ok_exp(v3);
        a5 = a5 + v4;
        ok_store(q1, v4);
      }
      b5.add(ok_total<ok_sum_op>(a5));
      a5 = ok_c<vf32>(-0.0);
    }
    __syncwarp();
    const auto v5 = n ? b5.sum() + vf32{} : vf32{};
    for (i64 j = lane; j < n; j += 32) {
      const i64 i1 = j;
      char *const q2 = p2 + i1 * a.stride[2][1];
      char *const q3 = p3 + i1 * a.stride[3][1];
      const auto v6 = ok_load<f32>(q2);
      const auto v7 = v6 / v5;
      ok_store(q3, v7);
    }
    __syncwarp();
  }
}
