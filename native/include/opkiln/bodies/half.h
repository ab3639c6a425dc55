//@ f16 :
// float16 in memory is float32 in registers, which hold every half exactly. Rounding gives the
// nearest half, ties to even; what overflows becomes infinite, NaN stays and is quiet. Reading
// widens, and writing narrows what is a half already. Where F16C is there it takes whole registers;
// elsewhere integers give the same bits.
#if defined(__F16C__) && !defined(__clang__) && OK_N >= 8
#if defined(__AVX512F__) && OK_N >= 16
#define OK_F16C 16
#else
#define OK_F16C 8
#endif
typedef short ok_halves __attribute__((vector_size(2 * OK_F16C)));
typedef float ok_wides __attribute__((vector_size(4 * OK_F16C)));
#if OK_F16C == 16
OK_FN ok_wides ok_widen_part(ok_halves h) {
  return __builtin_ia32_vcvtph2ps512_mask(h, ok_wides{}, -1, 4);
}
OK_FN ok_halves ok_narrow_part(ok_wides x) {
  return __builtin_ia32_vcvtps2ph512_mask(x, 0, ok_halves{}, -1);
}
#else
OK_FN ok_wides ok_widen_part(ok_halves h) { return __builtin_ia32_vcvtph2ps256(h); }
OK_FN ok_halves ok_narrow_part(ok_wides x) { return __builtin_ia32_vcvtps2ph256(x, 0); }
#endif
#endif
OK_FN vf32 ok_widen_f16(vu16 h) {
#ifdef OK_F16C
  vf32 x;
  for (int i = 0; i < OK_N / OK_F16C; i++)
    ((ok_wides*)&x)[i] = ok_widen_part(((const ok_halves*)&h)[i]);
  return x;
#else
  vu32 w = ok_resize<u32>(h), m = (w & 0x7fffu) << 13;
  vf32 least = ok_c<vf32>(6.103515625e-05);  // the normal of least exponent; below all is exact
  vu32 normal = m + (112u << 23), tiny = (vu32)((vf32)(m + (113u << 23)) - least);
  vu32 special = m | 0x7f800000u | (m > 0x0f800000u ? ok_c<vu32>(0x400000u) : vu32{});
  vu32 r = m < 0x00800000u ? tiny : (m < 0x0f800000u ? normal : special);
  return (vf32)(r | (w & 0x8000u) << 16);
#endif
}
OK_FN vu16 ok_narrow_f16(vf32 x) {
#ifdef OK_F16C
  vu16 h;
  for (int i = 0; i < OK_N / OK_F16C; i++)
    ((ok_halves*)&h)[i] = ok_narrow_part(((const ok_wides*)&x)[i]);
  return h;
#else
  vu32 u = (vu32)x, a = u & 0x7fffffffu;
  // Adding 1/2 makes whole units of 2^-24 of what is below the normals.
  vu32 half = ok_c<vu32>(0x3f000000u), tiny = (vu32)((vf32)a + (vf32)half) - half;
  vu32 normal = (a >> 13) - (112u << 10), special = (a >> 13 & 0x3ffu) | 0x7c00u;
  vu32 r = a < 0x38800000u ? tiny : (a < 0x47800000u ? normal : special);
  return ok_resize<u16>(r | u >> 16 & 0x8000u);
#endif
}
OK_FN vf32 ok_round_f16(vf32 x) {
#ifdef OK_F16C
  return ok_widen_f16(ok_narrow_f16(x));
#else
  vu32 u = (vu32)x, a = u & 0x7fffffffu;
  vf32 half = ok_c<vf32>(0.5);
  vu32 tiny = (vu32)(((vf32)a + half) - half);
  vu32 normal = (a + 0xfffu + (a >> 13 & 1u)) & 0xffffe000u;
  vu32 inf = ok_c<vu32>(0x7f800000u), special = a > inf ? (a | 0x400000u) & 0xffffe000u : inf;
  vu32 r = a < 0x38800000u ? tiny : (a < 0x477ff000u ? normal : special);
  return (vf32)(r | (u & 0x80000000u));
#endif
}

//@ odd :
// The bits that float32 has no room for, as one: then rounding by way of float32 rounds only once.
// It ends in float16, so that what float32 itself rounds, its subnormals, becomes 0.
OK_FN vf64 ok_odd(vf64 x) {
  vu64 u = (vu64)x, low = u & 0x1ffffffful;
  return (vf64)((u & ~0x1ffffffful) | (low + 0x1ffffffful & 0x20000000ul));
}

//@ bf16 :
// The same of bfloat16, which is the upper half of a float32.
OK_FN vf32 ok_widen_bf16(vu16 h) { return (vf32)(ok_resize<u32>(h) << 16); }
OK_FN vf32 ok_round_bf16(vf32 x) {
  vu32 u = (vu32)x, r = u + 0x7fffu + (u >> 16 & 1u);
  return (vf32)((x != x ? u | 0x400000u : r) & 0xffff0000u);
}
OK_FN vu16 ok_narrow_bf16(vf32 x) { return ok_resize<u16>((vu32)x >> 16); }

//@ next_half :
// The bits of the half beside x, towards y, from those of x. Zero goes to the least of y's sign.
OK_FN vu32 ok_next_half(vu32 h, vf32 x, vf32 y) {
  vu32 least = ((vu32)y >> 16 & 0x8000u) | 1u;
  vu32 r = (x < y) == (x > 0) ? h + 1u : h - 1u;
  return x == 0 ? least : r;
}

//@ next_f16 : f16 next_half
OK_FN vf32 ok_nextafter_f16(vf32 x, vf32 y) {
  vf32 r = ok_widen_f16(ok_resize<u16>(ok_next_half(ok_resize<u32>(ok_narrow_f16(x)), x, y)));
  return x == y ? y : ((x != x) | (y != y) ? x + y : r);
}
// NumPy's spacing of float16 looks upwards, whatever the sign.
OK_FN vf32 ok_spacing_f16(vf32 x) {
  vf32 inf = ok_c<vf32>(__builtin_inf());
  return (ok_nextafter_f16(x, inf) - x) + (x == -inf ? x - x : vf32{});
}

//@ next_bf16 : bf16 next_half copysign
OK_FN vf32 ok_nextafter_bf16(vf32 x, vf32 y) {
  vf32 r = ok_widen_bf16(ok_resize<u16>(ok_next_half(ok_resize<u32>(ok_narrow_bf16(x)), x, y)));
  return x == y ? y : ((x != x) | (y != y) ? x + y : r);
}
// That of ml_dtypes looks away from zero.
OK_FN vf32 ok_spacing_bf16(vf32 x) {
  return ok_nextafter_bf16(x, ok_copysign(ok_c<vf32>(__builtin_inf()), x)) - x;
}
