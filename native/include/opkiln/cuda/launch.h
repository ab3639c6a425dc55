//@ args :
// What a kernel of O operands, R logical axes and S scalars is launched with: for each operand its
// first element and the bytes from one to the next along each axis; the word that fault bits go to.
template <int O, int R, int S>
struct ok_args {
  char* ptr[O];
  i64 stride[O][R];
  i64 extent[R];
  u64 scalar[S];
  u64* fault;
};
// Threads take elements, warps take rows, in turns of the whole grid.
OK_FN i64 ok_thread() { return (i64)blockIdx.x * blockDim.x + threadIdx.x; }
OK_FN i64 ok_threads() { return (i64)gridDim.x * blockDim.x; }

//@ report :
OK_FN void ok_report(u64* word, u64 bits) {
  if (bits) atomicOr((unsigned long long*)word, (unsigned long long)bits);
}

//@ warp :
// A warp is the 32 accumulators of a row. Each thread gets what the thread `by` further on has.
template <class V>
OK_FN V ok_turn(V v, int by) {
  typedef ok_elt<UVec<V>> U;
  if constexpr (sizeof(V) == 8)
    return (V)UVec<V>((U)__shfl_down_sync(~0u, (unsigned long long)((UVec<V>)v).x, by));
  else
    return (V)UVec<V>((U)__shfl_down_sync(~0u, (u32)((UVec<V>)v).x, by));
}
// Each thread gets what the first one has.
template <class V>
OK_FN V ok_first(V v) {
  typedef ok_elt<UVec<V>> U;
  if constexpr (sizeof(V) == 8)
    return (V)UVec<V>((U)__shfl_sync(~0u, (unsigned long long)((UVec<V>)v).x, 0));
  else
    return (V)UVec<V>((U)__shfl_sync(~0u, (u32)((UVec<V>)v).x, 0));
}
// Accumulator i with i + 16, i + 8 ... 1, as everywhere.
template <class Op, class V>
OK_FN V ok_total(V v) {
  for (int half = 16; half; half /= 2) v = Op::f(v, ok_turn(v, half));
  return ok_first(v);
}

//@ find : warp
// The best value that a thread has met and its column; of equal ones the first.
template <class Op, class V>
OK_FN void ok_find_next(V& best, vi64& at, V v, i64 here) {
  const auto stays = Op::keep(best, v);
  best = stays ? best : v;
  at = stays ? at : vi64(here);
}
template <class Op, class V>
OK_FN vi64 ok_found(V own, vi64 at) {
  V best = own;
  for (int half = 16; half; half /= 2) {
    const V other = ok_turn(best, half);
    best = Op::keep(best, other) ? best : other;
  }
  vi64 index = Op::keep(own, ok_first(best)) ? at : ok_c<vi64>(~((u64)1 << 63));
  for (int half = 16; half; half /= 2) {
    const vi64 other = ok_turn(index, half);
    index = other < index ? other : index;
  }
  return ok_first(index);
}
