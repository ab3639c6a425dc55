// ok_k0
//   once:
//     v2 = np.uint8(4)
//   loop:
//     v0 = load 0 : uint8
//     v1 = negative v0
//     v3 = less v1 v2
//     v4 = load 1 : bool
//     v5 = logical_and v3 v4
//     store 2 v5
extern "C" __global__ void ok_k0(const ok_args<3, 1, 1> a) {
  const auto v2 = ok_splat<u8>((u8)4ul);
  const i64 n = a.extent[0];
  for (i64 i = ok_thread(); i < n; i += ok_threads()) {
    const i64 i0 = i;
    char *const p0 = a.ptr[0] + i0 * a.stride[0][0];
    char *const p1 = a.ptr[1] + i0 * a.stride[1][0];
    char *const p2 = a.ptr[2] + i0 * a.stride[2][0];
    const auto v0 = ok_load<u8>(p0);
    const auto v1 = -v0;
    const auto v3 = v1 < v2;
    const auto v4 = ok_load_bool(p1);
    const auto v5 = ok_and(v3, v4);
    ok_store_bool(p2, v5);
  }
}
// ok_k1
//   once:
//     v2 = np.int32(7)
//   loop:
//     v0 = load 0 : bool
//     v1 = load 1 : int32
//     v3 = where v0 v1 v2
//     store 2 v3
extern "C" __global__ void ok_k1(const ok_args<3, 1, 1> a) {
  const auto v2 = ok_splat<i32>((i32)7ul);
  const i64 n = a.extent[0];
  for (i64 i = ok_thread(); i < n; i += ok_threads()) {
    const i64 i0 = i;
    char *const p0 = a.ptr[0] + i0 * a.stride[0][0];
    char *const p1 = a.ptr[1] + i0 * a.stride[1][0];
    char *const p2 = a.ptr[2] + i0 * a.stride[2][0];
    const auto v0 = ok_load_bool(p0);
    const auto v1 = ok_load<i32>(p1);
    const auto v3 = ok_sel(v0, v1, v2);
    ok_store(p2, v3);
  }
}
