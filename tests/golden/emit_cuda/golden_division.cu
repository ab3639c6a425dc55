// ok_k0
//   loop:
//     v0 = load 0 : int32
//     v1 = load 1 : int32
//     v2 = floor_divide v0 v1
//     store 2 v2
extern "C" __global__ void ok_k0(const ok_args<3, 1, 1> a) {
  ok_fault_t fault = {};
  const i64 n = a.extent[0];
  for (i64 i = ok_thread(); i < n; i += ok_threads()) {
    const i64 i0 = i;
    char *const p0 = a.ptr[0] + i0 * a.stride[0][0];
    char *const p1 = a.ptr[1] + i0 * a.stride[1][0];
    char *const p2 = a.ptr[2] + i0 * a.stride[2][0];
    const auto v0 = ok_load<i32>(p0);
    const auto v1 = ok_load<i32>(p1);
    const auto v2 = ok_floordiv(v0, v1, fault);
    ok_store(p2, v2);
  }
  ok_report(a.fault, ok_fault_bits(fault));
}
