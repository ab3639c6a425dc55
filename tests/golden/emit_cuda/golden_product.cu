// ok_k0
extern "C" __global__ void ok_k0(const ok_args<3, 4, 1> a) {
  const i64 n = a.extent[0] * a.extent[1] * a.extent[2];
  for (i64 i = ok_thread(); i < n; i += ok_threads()) {
    const i64 i0 = i / (a.extent[1] * a.extent[2]);
    const i64 i1 = i / a.extent[2] % a.extent[1];
    const i64 i2 = i % a.extent[2];
    char *const p0 = a.ptr[0] + i0 * a.stride[0][0] + i1 * a.stride[0][1];
    char *const p1 = a.ptr[1] + i2 * a.stride[1][2];
    char *const p2 = a.ptr[2] + i0 * a.stride[2][0] + i1 * a.stride[2][1] + i2 * a.stride[2][2];
    vf32 total = {};
    for (i64 begin = 0; begin < a.extent[3]; begin += 512) {
      const i64 end = begin + 512 < a.extent[3] ? begin + 512 : a.extent[3];
      vf32 sum = {};
      for (i64 j = begin; j < end; ++j) {
        const i64 i3 = j;
        char *const q0 = p0 + i3 * a.stride[0][3];
        char *const q1 = p1 + i3 * a.stride[1][3];
        sum = sum + ok_load<f32>(q0) * ok_load<f32>(q1);
      }
      total = total + sum;
    }
    ok_store(p2, total);
  }
}
