// ok_k0
//   loop:
//     v0 = load 0 : float32
//     v1 = load 1 : float32
//     v2 = multiply v0 v1
//     v3 = load 2 : float32
//     v4 = add v2 v3
//     store 3 v4
extern "C" __global__ void ok_k0(const ok_args<4, 2, 1> a) {
  const i64 n = a.extent[0] * a.extent[1];
  for (i64 i = ok_thread(); i < n; i += ok_threads()) {
    const i64 i0 = i / a.extent[1];
    const i64 i1 = i % a.extent[1];
    char *const p0 = a.ptr[0] + i0 * a.stride[0][0] + i1 * a.stride[0][1];
    char *const p1 = a.ptr[1] + i1 * a.stride[1][1];
    char *const p2 = a.ptr[2] + i0 * a.stride[2][0] + i1 * a.stride[2][1];
    char *const p3 = a.ptr[3] + i0 * a.stride[3][0] + i1 * a.stride[3][1];
    const auto v0 = ok_load<f32>(p0);
    const auto v1 = ok_load<f32>(p1);
    const auto v2 = v0 * v1;
    const auto v3 = ok_load<f32>(p2);
    const auto v4 = v2 + v3;
    ok_store(p3, v4);
  }
}
