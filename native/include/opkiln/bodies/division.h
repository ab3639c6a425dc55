//@ libm :
extern "C" double fmod(double, double);
extern "C" float fmodf(float, float);

//@ remainder : abs any copysign fma libm round
// C's fmod, exact: one rounded quotient and an exact fma while |a / b| is small, libm's by lane
// for the rest.
template <class T>
OK_COLD void ok_fmod_big_(const T* a, T* b) {
  for (int i = 0; i < OK_N; i++) b[i] = sizeof(T) == 4 ? fmodf(a[i], b[i]) : fmod(a[i], b[i]);
}
template <class V>
OK_FN V ok_fmod_(V a, V b) {
  typedef ok_elt<V> T;
  V x = ok_abs(a), y = ok_abs(b), q = x / y, r = ok_fma(-ok_trunc(q), y, x);
  r = r < 0 ? r + y : r;
  r = ok_copysign(r, a);
  IVec<V> near = (q < ok_c<V>(sizeof(T) == 4 ? 8388608.0 : 4503599627370496.0)) &
                 (y < ok_c<V>(__builtin_inf()));
  if (__builtin_expect(ok_any(~near), 0)) {
    T as[OK_N], bs[OK_N];
    ok_store((char*)as, a);
    ok_store((char*)bs, b);
    ok_fmod_big_(as, bs);
    r = near ? r : ok_load<T>((char*)bs);
  }
  return r;
}

//@ divmod : fault intdiv remainder copysign round
// Quotient and remainder as NumPy's floor_divide and remainder.
template <class V>
OK_FN void ok_divmod_(V a, V b, V& q, V& r) {
  if constexpr (ok_is_float<V>) {
    V m = ok_fmod_(a, b), div = (a - m) / b, near;
    IVec<V> fix = (m != 0) & ((b < 0) != (m < 0));
    r = fix ? m + b : (m == 0 ? ok_copysign(V{}, b) : m);
    div = fix ? div - 1 : div;
    near = ok_floor(div);
    near = div - near > ok_c<V>(0.5) ? near + 1 : near;
    near = div == 0 ? ok_copysign(V{}, a / b) : near;
    q = b == 0 ? a / b : near;
    r = b == 0 ? m : r;
  } else {
    IVec<V> bad = b == 0;
    if constexpr (ok_is_signed<V>) {
      V low = ok_c<V>((ok_elt<V>)((u64)1 << (8 * sizeof(ok_elt<V>) - 1)));
      bad |= (a == low) & (b == -1);
    }
    V safe = bad ? ok_c<V>(1) : b;
    q = ok_quotient_(a, safe);
    r = a - q * safe;
    if constexpr (ok_is_signed<V>) {
      IVec<V> fix = (r != 0) & ((r ^ safe) < 0);
      q += fix;
      r += fix & safe;
    }
    q = b == 0 ? V{} : q;
  }
}

//@ floordiv : divmod
template <class V>
OK_FN V ok_floordiv(V a, V b, ok_fault_t& fault) {
  V q, r;
  ok_divmod_(a, b, q, r);
  if constexpr (!ok_is_float<V>) {
    ok_fault_(fault, b == 0, 1);
    if constexpr (ok_is_signed<V>) {
      V low = ok_c<V>((ok_elt<V>)((u64)1 << (8 * sizeof(ok_elt<V>) - 1)));
      ok_fault_(fault, (a == low) & (b == -1), 4);
    }
  }
  return q;
}

//@ mod : divmod
template <class V>
OK_FN V ok_mod(V a, V b, ok_fault_t& fault) {
  V q, r;
  ok_divmod_(a, b, q, r);
  if constexpr (!ok_is_float<V>) ok_fault_(fault, b == 0, 1);
  return r;
}

//@ fmod : fault intdiv remainder
// NumPy's fmod: the remainder has the sign of a.
template <class V>
OK_FN V ok_fmod(V a, V b, ok_fault_t& fault) {
  if constexpr (ok_is_float<V>) {
    return ok_fmod_(a, b);
  } else {
    ok_fault_(fault, b == 0, 1);
    IVec<V> bad = b == 0;
    if constexpr (ok_is_signed<V>) bad |= b == -1;
    V safe = bad ? ok_c<V>(1) : b;
    return a - ok_quotient_(a, safe) * safe;
  }
}
