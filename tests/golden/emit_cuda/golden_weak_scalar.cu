// ok_k0
//   once:
//     v3 = scalar 0 : float64
//     v4 = sqrt v3
//   loop:
//     v0 = load 0 : bool
//     v1 = load 1 : float32
//     v2 = float64 v1
//     v5 = multiply v2 v4
//     v6 = where v0 v5 v3
//     store 2 v6
extern "C" __global__ void ok_k0(const ok_args<3, 1, 1> a) {
  const auto v3 = ok_param<f64>(a.scalar[0]);
  const auto v4 = ok_sqrt(v3);
  const i64 n = a.extent[0];
  for (i64 i = ok_thread(); i < n; i += ok_threads()) {
    const i64 i0 = i;
    char *const p0 = a.ptr[0] + i0 * a.stride[0][0];
    char *const p1 = a.ptr[1] + i0 * a.stride[1][0];
    char *const p2 = a.ptr[2] + i0 * a.stride[2][0];
    const auto v0 = ok_load_bool(p0);
    const auto v1 = ok_load<f32>(p1);
    const auto v2 = ok_cast<f64>(v1);
    const auto v5 = v2 * v4;
    const auto v6 = ok_sel(v0, v5, v3);
    ok_store(p2, v6);
  }
}
