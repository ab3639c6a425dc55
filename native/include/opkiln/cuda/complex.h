//@ complex_memory : complex
// In memory the parts of a value lie side by side.
struct cf32 {
  typedef f32 part;
  f32 re, im;
};
struct cf64 {
  typedef f64 part;
  f64 re, im;
};
template <class C>
using ok_cplx_of = ok_cplx<Vec<typename C::part>>;
template <class C>
OK_FN ok_cplx_of<C> ok_splat_complex(C z) {
  return {z.re, z.im};
}
template <class C>
OK_FN ok_cplx_of<C> ok_load_complex(const char* p) {
  return ok_splat_complex(*(const C*)p);
}
template <class C>
OK_FN void ok_store_complex(char* p, ok_cplx_of<C> z) {
  *(C*)p = C{z.re.x, z.im.x};
}
