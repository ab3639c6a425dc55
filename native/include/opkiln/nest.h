//@ rest :
// A call that the optimiser must not look through. g++ 12 deletes calls by what it learnt about the
// callee (ipa-modref, then dce): seen with two folds of different width in one loop.
#if defined(__clang__)
#define OK_OPAQUE __attribute__((noinline))
#else
#define OK_OPAQUE __attribute__((noipa))
#endif
#define OK_INLINE __attribute__((always_inline))
// The first `count` lanes of dense elements by mask, where AVX-512 has it; the others repeat lane
// 0, so that idle lanes compute what a valid lane computes and can raise no fault of their own.
#ifdef OK_AVX512
template <class T>
constexpr bool ok_masked = sizeof(Vec<T>) == 64;
template <class T>
OK_FN Vec<T> ok_load_masked(const char* p, i64 count) {
  const u64 mask = ((u64)1 << count) - 1;
  const Vec<T> first = ok_splat<T>(*(const typename ok_vec<T>::one*)p);
  if constexpr (sizeof(T) == 1)
    return (Vec<T>)__builtin_ia32_loaddquqi512_mask(p, (ok_c64)first, mask);
  else if constexpr (sizeof(T) == 2)
    return (Vec<T>)__builtin_ia32_loaddquhi512_mask((const short*)p, (ok_s64)first, mask);
  else if constexpr (sizeof(T) == 4)
    return (Vec<T>)__builtin_ia32_loaddqusi512_mask((const int*)p, (ok_i64)first, mask);
  else
    return (Vec<T>)__builtin_ia32_loaddqudi512_mask((const long long*)p, (ok_l64)first, mask);
}
template <class V>
OK_FN void ok_store_masked(char* p, V v, i64 count) {
  const u64 mask = ((u64)1 << count) - 1;
  if constexpr (sizeof(ok_elt<V>) == 1)
    __builtin_ia32_storedquqi512_mask(p, (ok_c64)v, mask);
  else if constexpr (sizeof(ok_elt<V>) == 2)
    __builtin_ia32_storedquhi512_mask((short*)p, (ok_s64)v, mask);
  else if constexpr (sizeof(ok_elt<V>) == 4)
    __builtin_ia32_storedqusi512_mask((int*)p, (ok_i64)v, mask);
  else
    __builtin_ia32_storedqudi512_mask((long long*)p, (ok_l64)v, mask);
}
#else
template <class T>
constexpr bool ok_masked = false;
template <class T>
Vec<T> ok_load_masked(const char* p, i64 count);
template <class V>
void ok_store_masked(char* p, V v, i64 count);
#endif
// The caller's code may be older than AVX: it would wait for what the upper halves of the vector
// registers held. The compiler clears them by itself from -O2 on.
OK_FN u64 ok_leave(u64 faults) {
#if defined(__AVX__)
  __builtin_ia32_vzeroupper();
#endif
  return faults;
}
// The rest of a row is padded to a whole step.
template <class T>
static OK_OPAQUE void ok_pad(char* to, const char* from, i64 stride, i64 count, i64 total) {
  typedef typename ok_vec<T>::one E;
  const Vec<T> first = ok_splat<T>(*(const E*)from);
  for (i64 i = 0; i < total; i += OK_N, to += sizeof(first)) {
    if constexpr (ok_masked<T>) {
      if (stride == sizeof(T) && i < count) {
        const char* p = from + i * stride;
        ok_store(to, count - i < OK_N ? ok_load_masked<T>(p, count - i) : ok_load<T>(p));
        continue;
      }
    }
    ok_store(to, first);
    for (i64 lane = 0; lane < OK_N && i + lane < count; ++lane)
      ((E*)to)[lane] = *(const E*)(from + (i + lane) * stride);
  }
}
template <class T>
static OK_OPAQUE void ok_unpad(char* to, i64 stride, const char* from, i64 count) {
  typedef typename ok_vec<T>::one E;
  if constexpr (ok_masked<T>) {
    if (stride == sizeof(T)) {
      for (; count >= OK_N; count -= OK_N, to += 64, from += 64) ok_store(to, ok_load<T>(from));
      if (count) ok_store_masked(to, ok_load<T>(from), count);
      return;
    }
  }
  for (i64 i = 0; i < count; ++i) *(E*)(to + i * stride) = ((const E*)from)[i];
}
//@ part :
// The first `count` lanes of a vector in memory, as above.
template <class T>
static OK_OPAQUE Vec<T> ok_gather_short(const char* p, i64 stride, i64 count) {
  typedef typename ok_vec<T>::one E;
  Vec<T> v;
  for (int i = 0; i < OK_N; ++i) v[i] = *(const E*)(p + (i < count ? i : 0) * stride);
  return v;
}
template <class V>
static OK_OPAQUE void ok_scatter_short(char* p, i64 stride, V v, i64 count) {
  typedef typename ok_vec<ok_elt<V>>::one E;
  for (int i = 0; i < OK_N; ++i)
    if (i < count) *(E*)(p + i * stride) = v[i];
}
template <class T>
OK_FN Vec<T> ok_gather_part(const char* p, i64 stride, i64 count) {
  return count >= OK_N ? ok_gather<T>(p, stride) : ok_gather_short<T>(p, stride, count);
}
template <class T>
OK_FN Vec<T> ok_load_part(const char* p, i64 count) {
  if (count >= OK_N) return ok_load<T>(p);
  if constexpr (ok_masked<T>)
    return ok_load_masked<T>(p, count);
  else
    return ok_gather_short<T>(p, sizeof(T), count);
}
template <class V>
OK_FN void ok_scatter_part(char* p, i64 stride, V v, i64 count) {
  if (count >= OK_N)
    ok_scatter(p, stride, v);
  else
    ok_scatter_short(p, stride, v, count);
}
template <class V>
OK_FN void ok_store_part(char* p, V v, i64 count) {
  if (count >= OK_N)
    ok_store(p, v);
  else if constexpr (ok_masked<ok_elt<V>>)
    ok_store_masked(p, v, count);
  else
    ok_scatter_short(p, sizeof(ok_elt<V>), v, count);
}
OK_FN vi8 ok_gather_part_bool(const char* p, i64 stride, i64 count) {
  return ok_gather_part<i8>(p, stride, count) != 0;
}
OK_FN vi8 ok_load_part_bool(const char* p, i64 count) { return ok_load_part<i8>(p, count) != 0; }
template <class M>
OK_FN void ok_scatter_part_bool(char* p, i64 stride, M m, i64 count) {
  ok_scatter_part(p, stride, ok_mask<i8>(m) & 1, count);
}
template <class M>
OK_FN void ok_store_part_bool(char* p, M m, i64 count) {
  ok_store_part(p, ok_mask<i8>(m) & 1, count);
}
//@ pairs :
// A fold has 32 accumulators, whatever the vector width. Its order depends on an element's index
// alone: accumulator i % 32, then i with i + 16, i + 8 ... 1; a float sum closes a block every 512
// elements and adds blocks pairwise (N. J. Higham, The accuracy of floating point summation, SISC
// 14, 1993). `Op` is printed from the reduction's row.
template <class V, class Op>
struct ok_pairs {
  V level[48];
  u64 blocks;
  OK_MEMBER void add(V total) {
    u64 carry = blocks++;
    int at = 0;
    for (; carry & 1; carry >>= 1) total = Op::f(level[at++], total);
    level[at] = total;
  }
  OK_MEMBER V sum() const {
    u64 left = blocks;
    int at = 0;
    for (; !(left & 1); left >>= 1) ++at;
    V total = level[at];
    while (++at, left >>= 1)
      if (left & 1) total = Op::f(level[at], total);
    return total;
  }
};
// max and min forget which zero and which NaN came first: that alone would tell their order.
template <class V>
OK_FN V ok_settle(V v) {
  if constexpr (ok_is_float<V>)
    return v != v ? ok_c<V>(__builtin_nan("")) : v + ok_c<V>(0);
  else
    return v;
}
//@ fold :
// Where a kernel keeps its state S: on the stack only if it is small, for threads may have little
// of that; else in the scratch memory that the caller is asked for.
template <class S, bool Small = sizeof(S) <= 16384>
struct ok_place {
  static constexpr u64 scratch = 0;
  S own;
  S& at(char*) { return own; }
};
template <class S>
struct ok_place<S, false> {
  static constexpr u64 scratch = sizeof(S);
  S& at(char* memory) { return *(S*)memory; }
};
// Lane i gets lane i + by.
template <class V>
OK_FN V ok_turn(V v, int by) {
#if defined(__clang__)
  V w;
  for (int i = 0; i < OK_N; ++i) w[i] = v[(i + by) & (OK_N - 1)];
  return w;
#else
  typedef IVec<V> I;
  return __builtin_shuffle(v, (I{OK_IOTA} + (ok_elt<I>)by) & (ok_elt<I>)(OK_N - 1));
#endif
}
// Accumulator v * OK_N + lane lives in lane `lane` of acc[v].
template <class V, int K, class Op>
struct ok_fold {
  V acc[K];
  ok_pairs<V, Op> pairs;
  void start(ok_elt<V> identity) {
    for (int i = 0; i < K; ++i) acc[i] = ok_c<V>(identity);
    pairs.blocks = 0;
  }
  OK_OPAQUE V total() {
    for (int half = K / 2; half; half /= 2)
      for (int i = 0; i < half; ++i) acc[i] = Op::f(acc[i], acc[i + half]);
    V v = acc[0];
    for (int half = OK_N / 2; half; half /= 2) v = Op::f(v, ok_turn(v, half));
    return ok_splat<ok_elt<V>>(v[0]);
  }
  void close_block(ok_elt<V> identity) {
    pairs.add(total());
    for (int i = 0; i < K; ++i) acc[i] = ok_c<V>(identity);
  }
};
// What one pass over a panel takes: up to Most columns, Apart from each other. The first is
// `column`, which is k in its block; `left` columns are to come.
template <int Apart, int Most>
struct ok_columns {
  i64 k, column, left;
  i64 count(i64 from) const {
    const i64 all = (left - from + Apart - 1) / Apart;
    return all < Most ? all : Most;
  }
};
// Accumulators k and k + 16 of a short block are folded at once, before they are stored. Of a row
// with fewer columns than accumulators all stay in the cache.
OK_FN i64 ok_leaves(i64 columns) { return columns >= 32 && columns <= 128 ? 2 : 1; }
// The same for a panel of rows, w vectors of them and at most U: accumulator k of vector u is
// acc[k * (w + 1) + u]. Whole pages apart they would share sets of the cache with each other and
// with columns that are whole pages apart. One of A = 1 serves folds that no order changes.
template <class V, int U, int A, class Op>
struct ok_panel {
  V acc[A * (U + 1)];
  void start(ok_elt<V> identity, i64 w) {
    for (i64 i = 0; i < A * (w + 1); ++i) acc[i] = ok_c<V>(identity);
  }
  // The first n accumulators of a vector, half and half; those of a whole block in registers.
  template <int N, int Half = 1>
  OK_FN V whole(const V* own, i64 step) {
    if constexpr (Half >= N)
      return *own;
    else
      return Op::f(whole<N, 2 * Half>(own, step), whole<N, 2 * Half>(own + Half * step, step));
  }
  OK_FN V tree(V* own, i64 n, i64 step) {
    if (n >= A) return whole<A>(own, step);
    if (n == A / 2) return whole<A / 2>(own, step);
    for (i64 half = A / 2; half; half /= 2)
      for (i64 k = 0; k < half && k + half < n; ++k)
        own[k * step] = Op::f(own[k * step], own[(k + half) * step]);
    return *own;
  }
  OK_OPAQUE V total(i64 n, i64 w, i64 u) { return tree(acc + u, n, w + 1); }
};
// 22 levels serve 2^30 columns; the runtime lets no kernel of this kind have more.
template <class V, int U, int A, class Op>
struct ok_blocked_panel : ok_panel<V, U, A, Op> {
  V level[22 * U];
  u64 blocks;
  OK_OPAQUE void close(i64 n, i64 w) {
    const int ones = __builtin_ctzl(~blocks++);
    for (i64 u = 0; u < w; ++u) {
      V total = this->tree(this->acc + u, n, w + 1);
      for (int at = 0; at < ones; ++at) total = Op::f(level[at * w + u], total);
      level[ones * w + u] = total;
    }
  }
  V sum(i64 w, i64 u) const {
    u64 left = blocks;
    int at = __builtin_ctzl(left);
    V total = level[at * w + u];
    for (left >>= at; ++at, left >>= 1;)
      if (left & 1) total = Op::f(level[at * w + u], total);
    return total;
  }
};
//@ find :
// A fold that finds holds, per accumulator, the best value so far. Within a block it notes the step
// that the value comes from, as narrow as the value itself; the block's end makes an index of it.
// Of equal values the one of the lowest index wins. An accumulator starts with the identity at 0,
// which is right where all values equal the identity, and elsewhere loses. `Op::keep` is printed
// from the reduction's row: where the first of two values stays.
template <class Op, class V>
OK_FN void ok_find_next(V& best, IVec<V>& step, V v, IVec<V> here) {
  const auto stays = Op::keep(best, v);
  best = ok_sel(stays, best, v);
  step = ok_sel(stays, step, here);
}
template <class V, int K, class Op>
struct ok_find {
  V acc[K];
  IVec<V> step[K];
  i64 at[32];
  void start(ok_elt<V> identity) {
    for (int i = 0; i < K; ++i) acc[i] = ok_c<V>(identity), step[i] = ok_c<IVec<V>>(-1);
    for (int k = 0; k < 32; ++k) at[k] = 0;
  }
  OK_OPAQUE void close(i64 begin) {
    for (int i = 0; i < K; ++i) {
      if (!ok_any(step[i] >= 0)) continue;
      for (int lane = 0; lane < OK_N; ++lane) {
        const i64 taken = step[i][lane], k = i * OK_N + lane;
        at[k] = taken < 0 ? at[k] : begin + 32 * taken + k;
      }
      step[i] = ok_c<IVec<V>>(-1);
    }
  }
  OK_OPAQUE vi64 total() const {
    V best = acc[0];
    for (int i = 1; i < K; ++i) best = ok_sel(Op::keep(best, acc[i]), best, acc[i]);
    for (int half = OK_N / 2; half; half /= 2) {
      const V other = ok_turn(best, half);
      best = ok_sel(Op::keep(best, other), best, other);
    }
    i64 index = ~((u64)1 << 63);
    for (int i = 0; i < K; ++i) {
      const IVec<V> equal = Op::keep(acc[i], best);
      for (int lane = 0; lane < OK_N; ++lane) {
        const i64 own = at[i * OK_N + lane];
        index = equal[lane] && own < index ? own : index;
      }
    }
    return ok_splat<i64>(index);
  }
};
// The same for a panel of rows: one accumulator for each, whatever the order of the columns.
template <class V, int U, class Op>
struct ok_find_panel {
  V acc[U];
  vi64 at[U];
  void start(ok_elt<V> identity, i64 w) {
    for (i64 u = 0; u < w; ++u) acc[u] = ok_c<V>(identity), at[u] = vi64{};
  }
  // The best of a few columns, `apart` from column `begin` on.
  __attribute__((always_inline)) void merge(i64 u, V best, IVec<V> step, i64 begin, i64 apart) {
    const vi64 here = ok_resize<i64>(step) * apart + begin;
    const vi64 stays = ok_mask<i64>(Op::keep(acc[u], best));
    const vi64 back = ok_mask<i64>(Op::keep(best, acc[u]));
    const vi64 first = stays & (~back | (at[u] <= here));
    acc[u] = ok_sel(first, acc[u], best);
    at[u] = ok_sel(first, at[u], here);
  }
  vi64 total(i64, i64, i64 u) const { return at[u]; }
};
