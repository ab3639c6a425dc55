// ok_k0
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
extern "C" __global__ void ok_k0(const ok_args<3, 2, 1> a) {
  const auto v2 = ok_splat<f32>(__builtin_bit_cast(f32, 0x41100000u));
  const i64 rows = a.extent[1];
  const i64 n = a.extent[0];
  const i64 warp = ok_thread() / 32, lane = threadIdx.x % 32;
  const i64 warps = ok_threads() / 32;
  for (i64 r = warp; r < rows; r += warps) {
    const i64 i1 = r;
    char *const p0 = a.ptr[0] + i1 * a.stride[0][1];
    char *const p1 = a.ptr[1] + i1 * a.stride[1][1];
    char *const p2 = a.ptr[2] + i1 * a.stride[2][1];
    vf32 a1 = ok_c<vf32>(-__builtin_inf());
    vi64 at1 = {};
    vi8 a4 = ok_c<vi8>(-1);
    for (i64 j = lane; j < n; j += 32) {
      const i64 i0 = j;
      char *const q0 = p0 + i0 * a.stride[0][0];
      const auto v0 = ok_load<f32>(q0);
      ok_find_next<ok_argmax_op>(a1, at1, v0, j);
      const auto v3 = v0 < v2;
      a4 = ok_and(a4, ok_mask<i8>(v3));
    }
    const auto v1 = ok_settle(ok_found<ok_argmax_op>(a1, at1));
    const auto v4 = ok_settle(ok_total<ok_all_op>(a4));
    if (lane == 0) ok_store(p1, v1);
    if (lane == 0) ok_store_bool(p2, v4);
    __syncwarp();
  }
}
