// test_nest.cpp: loop nests of every layout against a naive evaluator; NumPy's result order.
#include <algorithm>
#include <cstdlib>

#include "core/errors.h"
#include "core/nest.h"
#include "support.h"

namespace opkiln::test {
namespace {

struct NumpyCase {
  int rank;
  std::int64_t shape_a[6], strides_a[6], shape_b[6], strides_b[6], expected[6];
};
const NumpyCase kNumpyCases[] = {
#include "numpy_order.inc"
};

/// a + b with NumPy's broadcasting, one elementwise kernel; `out` of the broadcast shape.
Ref<Plan> linear_plan(DType dtype, int rank_a, int rank_b) {
  auto plan = make_ref<Plan>();
  const int a = plan->buffer(BufferKind::kArg, dtype, {}, rank_a);
  const int b = plan->buffer(BufferKind::kArg, dtype, {}, rank_b);
  const int rank = std::max(rank_a, rank_b);
  KernelSpec kernel;
  OperandSpec read_a{a, {}, false}, read_b{b, {}, false}, write{-1, {}, true};
  for (int axis = 0; axis < rank; ++axis) {
    const int in_a = axis - (rank - rank_a), in_b = axis - (rank - rank_b);
    const int ext_a = in_a >= 0 ? plan->host(HostOp::kExtent, a, -1, in_a) : -1;
    const int ext_b = in_b >= 0 ? plan->host(HostOp::kExtent, b, -1, in_b) : -1;
    kernel.extents.push_back(ext_a < 0   ? ext_b
                             : ext_b < 0 ? ext_a
                                         : plan->host(HostOp::kBcast, ext_a, ext_b));
    if (in_a >= 0) read_a.axes.emplace_back(axis);
    if (in_b >= 0) read_b.axes.emplace_back(axis);
    write.axes.emplace_back(axis);
  }
  write.buffer = plan->buffer(BufferKind::kOut, dtype, kernel.extents);
  kernel.operands = {read_a, read_b, write};
  plan->kernel(kernel);
  plan->output_buffer(write.buffer);
  plan->finish();
  return plan;
}

template <class T>
void check_linear(const std::vector<std::int64_t>& shape, const ArrayView& a, const ArrayView& b,
                  const ArrayView& out, const char* what) {
  bool same = true;
  for_each(shape, [&](const std::vector<std::int64_t>& at) {
    const T want = static_cast<T>(3 * load<T>(element(a, at)) + 5 * load<T>(element(b, at)));
    same = same && load<T>(element(out, at)) == want;
  });
  report(same, what, __FILE__, __LINE__);
}

/// Every unit once, cut at random places.
std::uint64_t run_in_pieces(Rng& rng, Executor& executor) {
  for (std::size_t n = 0; n < executor.nest_count(); ++n) {
    const Nest& nest = executor.nest(n);
    for (std::int64_t at = 0; at < nest.units;) {
      const std::int64_t next =
          std::min(nest.units, at + 1 + static_cast<std::int64_t>(rng() % 7) * 3);
      executor.run_range(nest, at, next);
      at = next;
    }
  }
  return 0;
}

std::vector<std::int64_t> random_shape(Rng& rng, int max_rank) {
  static const std::int64_t kExtents[] = {1, 2, 3, 4, 5, 2, 3, 7, 1, 0};
  std::vector<std::int64_t> shape;
  const int rank = pick(rng, 0, max_rank);
  const bool may_be_empty = pick(rng, 0, 9) == 0;
  for (int i = 0; i < rank; ++i) shape.push_back(kExtents[pick(rng, 0, may_be_empty ? 9 : 8)]);
  return shape;
}

/// Fewer axes and some extents 1.
std::vector<std::int64_t> broadcastable(Rng& rng, const std::vector<std::int64_t>& shape) {
  const int drop = pick(rng, 0, 3) == 0 ? pick(rng, 0, static_cast<int>(shape.size())) : 0;
  std::vector<std::int64_t> made(shape.begin() + drop, shape.end());
  for (std::int64_t& extent : made)
    if (pick(rng, 0, 4) == 0) extent = 1;
  return made;
}

template <class T>
void linear_case(Rng& rng, DType dtype, const std::vector<std::int64_t>& shape, bool partial) {
  Strided a = random_layout(rng, dtype, partial ? broadcastable(rng, shape) : shape, true);
  Strided b = random_layout(rng, dtype, shape, true);
  fill(rng, &a);
  fill(rng, &b);
  const auto plan =
      linear_plan(dtype, static_cast<int>(a.shape.size()), static_cast<int>(b.shape.size()));
  add_linear(*plan, 0, dtype);
  const bool given = pick(rng, 0, 2) == 0;
  Strided out = given ? random_layout(rng, dtype, shape, false) : Strided{};
  const ArrayView args[2] = {a.view(), b.view()};
  ArrayView outs[1] = {given ? out.view() : absent_array()};
  const Instantiated made = instantiate(plan, args, nullptr, given ? outs : nullptr);
  if (!CHECK(made.executor)) return;
  Executor& ex = *made.executor;
  if (!given) {
    const OutSpec& spec = ex.out(0);
    out.dtype = dtype;
    out.shape.assign(spec.shape, spec.shape + spec.ndim);
    out.strides.assign(spec.strides, spec.strides + spec.ndim);
    out.bytes.assign(static_cast<std::size_t>(spec.nbytes), 77);
    outs[0] = out.view();
    CHECK(out.shape == shape);
    CHECK(!has_internal_overlap(outs[0]));
    CHECK(byte_range(outs[0]).hi == spec.nbytes && byte_range(outs[0]).lo == 0);
  }
  for (int i = 0; i < 2; ++i) ex.args()[i] = args[i].data;
  ex.outs()[0] = outs[0].data;
  CHECK(ex.run() == 0);
  check_linear<T>(shape, args[0], args[1], outs[0], "linear, whole");
  std::fill(out.bytes.begin(), out.bytes.end(), 33);
  run_in_pieces(rng, ex);
  check_linear<T>(shape, args[0], args[1], outs[0], "linear, in pieces");
  CHECK(ex.bytes() < 4096);
}

/// x -> row results r (reduced axes dropped or kept as 1) and full results, one reduction kernel.
template <class T>
void fold_case(Rng& rng, DType dtype, const std::vector<std::int64_t>& shape,
               FunctionState& function, std::uint64_t salt) {
  const int rank = static_cast<int>(shape.size());
  const auto mask = static_cast<std::uint32_t>(1 + rng() % ((1u << rank) - 1));
  const bool keep = pick(rng, 0, 1) == 0;
  auto plan = make_ref<Plan>();
  const int x = plan->buffer(BufferKind::kArg, dtype, {}, rank);
  KernelSpec kernel;
  kernel.reduce_mask = mask;
  OperandSpec read{x, {}, false}, rows{-1, {}, true}, full{-1, {}, true};
  std::vector<int> row_extents;
  std::vector<std::int64_t> row_shape, kept_shape, reduced_shape;
  for (int axis = 0; axis < rank; ++axis) {
    const bool reduced = (mask >> axis & 1) != 0;
    const std::int64_t extent = shape[static_cast<std::size_t>(axis)];
    kernel.extents.push_back(plan->host(HostOp::kExtent, x, -1, axis));
    read.axes.emplace_back(axis);
    full.axes.emplace_back(axis);
    (reduced ? reduced_shape : kept_shape).push_back(extent);
    if (!reduced || keep) {
      rows.axes.emplace_back(axis);
      row_extents.push_back(reduced ? plan->host(HostOp::kConstI, -1, -1, 1)
                                    : kernel.extents.back());
      row_shape.push_back(reduced ? 1 : extent);
    }
  }
  rows.buffer = plan->buffer(BufferKind::kOut, dtype, row_extents);
  full.buffer = plan->buffer(BufferKind::kOut, dtype, kernel.extents);
  kernel.operands = {read, rows, full};
  plan->kernel(kernel);
  plan->output_buffer(rows.buffer);
  plan->output_buffer(full.buffer);
  plan->finish();
  add_fold_variants(*plan, 0, dtype);

  Strided in = random_layout(rng, dtype, shape, true);
  fill(rng, &in);
  Strided given = random_layout(rng, dtype, shape, false);
  const ArrayView args[1] = {in.view()};
  const ArrayView outs[2] = {absent_array(), pick(rng, 0, 1) == 0 ? given.view() : absent_array()};
  KeyBuilder key(function.id());
  key.word(salt);
  const std::uint64_t packs_before = function.stats.packs.load();
  Lease lease = ThreadTable::current().acquire(
      key.view(), function, [&] { return instantiate(plan, args, nullptr, outs).executor; });
  Executor& ex = *lease;
  std::vector<char> memory[2];
  ArrayView results[2];
  for (std::size_t k = 0; k < 2; ++k) {
    const OutSpec& spec = ex.out(k);
    memory[k].assign(static_cast<std::size_t>(spec.nbytes) + 1, 55);
    results[k] = {spec.given ? outs[k].data : memory[k].data(), dtype, spec.ndim, spec.shape,
                  spec.strides};
    ex.outs()[k] = results[k].data;
  }
  CHECK(std::vector<std::int64_t>(results[0].shape, results[0].shape + results[0].ndim) ==
        row_shape);
  ex.args()[0] = args[0].data;
  ex.run();
  const std::uint64_t packed = function.stats.packs.load() - packs_before;
  bool any_pack = false;
  for (std::size_t n = 0; n < ex.nest_count(); ++n) any_pack = any_pack || ex.nest(n).npacks != 0;
  CHECK((packed != 0) == any_pack);

  bool rows_ok = true, full_ok = true;
  for_each(kept_shape, [&](const std::vector<std::int64_t>& kept) {
    std::vector<std::int64_t> at(static_cast<std::size_t>(rank)), row_at;
    const auto place = [&](const std::vector<std::int64_t>& reduced) {
      std::size_t i = 0, j = 0;
      for (int axis = 0; axis < rank; ++axis)
        at[static_cast<std::size_t>(axis)] = (mask >> axis & 1) != 0 ? reduced[j++] : kept[i++];
    };
    std::uint64_t sum = 1;
    for_each(reduced_shape, [&](const std::vector<std::int64_t>& reduced) {
      place(reduced);
      sum = sum * 31 + static_cast<std::uint64_t>(load<T>(element(args[0], at)));
    });
    std::size_t i = 0;
    for (int axis = 0; axis < rank; ++axis) {
      if ((mask >> axis & 1) == 0)
        row_at.push_back(kept[i++]);
      else if (keep)
        row_at.push_back(0);
    }
    const T want = static_cast<T>(sum % 10007);
    rows_ok = rows_ok && load<T>(element(results[0], row_at)) == want;
    for_each(reduced_shape, [&](const std::vector<std::int64_t>& reduced) {
      place(reduced);
      full_ok = full_ok && load<T>(element(results[1], at)) ==
                               static_cast<T>(2 * load<T>(element(args[0], at)) + want);
    });
  });
  CHECK(rows_ok);
  CHECK(full_ok);
  lease.release();
}

TEST(nest_elementwise_fuzz) {
  Rng rng(1);
  for (int i = 0; i < 4000; ++i) {
    const auto shape = random_shape(rng, 5);
    if (i % 3 == 0) linear_case<std::int8_t>(rng, DType::kI8, shape, true);
    if (i % 3 == 1) linear_case<std::int32_t>(rng, DType::kI32, shape, true);
    if (i % 3 == 2) linear_case<std::int64_t>(rng, DType::kI64, shape, true);
  }
}

TEST(nest_rank_16_and_0) {
  Rng rng(2);
  for (int i = 0; i < 60; ++i) {
    std::vector<std::int64_t> shape;
    for (int axis = 0; axis < 16; ++axis) shape.push_back(pick(rng, 0, 2) == 0 ? 2 : 1);
    linear_case<std::int32_t>(rng, DType::kI32, shape, true);
    linear_case<std::int32_t>(rng, DType::kI32, {}, true);
  }
  CHECK_THROWS(PlanError, make_ref<Plan>()->buffer(BufferKind::kArg, DType::kF32, {}, 17));
}

TEST(nest_reduction_fuzz) {
  Rng rng(3);
  auto function = make_ref<FunctionState>();
  for (int i = 0; i < 3000; ++i) {
    auto shape = random_shape(rng, 4);
    if (shape.empty()) shape.push_back(pick(rng, 0, 5));
    if (i % 8 == 0) shape.back() = 32;  // two reduced axes that lie apart become runs of columns
    const auto salt = static_cast<std::uint64_t>(i);
    if (i % 3 == 0) fold_case<std::int16_t>(rng, DType::kI16, shape, *function, salt);
    if (i % 3 == 1) fold_case<std::int32_t>(rng, DType::kI32, shape, *function, salt);
    if (i % 3 == 2) fold_case<std::int64_t>(rng, DType::kI64, shape, *function, salt);
  }
  CHECK(function->stats.packs.load() > 100);
}

TEST(nest_reduction_tiles) {
  // Rows larger than a tile, more rows than fit into one.
  Rng rng(4);
  auto function = make_ref<FunctionState>();
  for (int i = 0; i < 6; ++i)
    fold_case<std::int32_t>(rng, DType::kI32, {37, pick(rng, 30, 60), 70}, *function,
                            static_cast<std::uint64_t>(i));
}

TEST(nest_order_is_numpys) {
  for (const NumpyCase& c : kNumpyCases) {
    const auto plan = linear_plan(DType::kI32, c.rank, c.rank);
    add_linear(*plan, 0, DType::kI32);
    std::int32_t data = 0;
    auto* p = reinterpret_cast<char*>(&data);
    const ArrayView args[2] = {{p, DType::kI32, c.rank, c.shape_a, c.strides_a},
                               {p, DType::kI32, c.rank, c.shape_b, c.strides_b}};
    const Instantiated made = instantiate(plan, args, nullptr);
    bool same = true;
    for (int i = 0; i < c.rank; ++i) {
      const OutSpec& out = made.executor->out(0);
      same = same && (out.shape[i] == 1 || out.strides[i] == c.expected[i]);
    }
    CHECK(same);
  }
}

TEST(nest_elementwise_tiles) {
  // Lines longer than a tile, operands that lie across it, short rows by the thousand.
  static const std::vector<std::int64_t> kShapes[] = {{3, 5000},   {40, 90},     {90, 40},
                                                      {2, 3, 700}, {1500, 3},    {5, 300, 2},
                                                      {33, 17, 5}, {257, 2, 16}, {70, 130}};
  Rng rng(5);
  for (int i = 0; i < 90; ++i) {
    const auto& shape = kShapes[i % 9];
    if (i % 4 == 0) linear_case<std::int8_t>(rng, DType::kI8, shape, true);
    if (i % 4 == 1) linear_case<std::int16_t>(rng, DType::kI16, shape, true);
    if (i % 4 == 2) linear_case<std::int32_t>(rng, DType::kI32, shape, true);
    if (i % 4 == 3) linear_case<std::int64_t>(rng, DType::kI64, shape, true);
  }
}

TEST(nest_classes) {
  // Fully contiguous of any rank is one run of columns; a column of another's row broadcasts.
  const auto plan = linear_plan(DType::kI32, 3, 3);
  Strided a = dense(DType::kI32, {4, 5, 100}), b = dense(DType::kI32, {4, 5, 1});
  const ArrayView same[2] = {a.view(), a.view()}, mixed[2] = {a.view(), b.view()};
  Instantiated made = instantiate(plan, same, nullptr);
  CHECK(!made.executor && made.missing.size() == 1 && made.missing[0].column_class == "CCC");
  made = instantiate(plan, mixed, nullptr);
  CHECK(made.missing.size() == 1 && made.missing[0].column_class == "CCC");
  add_linear(*plan, 0, DType::kI32);
  const auto nest = [&](const ArrayView* args) {
    made = instantiate(plan, args, nullptr);
    return made.executor->nest(0);
  };
  CHECK(nest(same).rows == 1 && nest(same).args.cols == 2000 && nest(same).simple);
  CHECK(nest(mixed).rows == 20 && nest(mixed).args.cols == 100 && nest(mixed).simple);

  // What is strided is packed: by lines, by short rows, by tiles of an operand that lies across.
  Strided wide = dense(DType::kI32, {4, 5, 200}), narrow = dense(DType::kI32, {4, 5, 6});
  wide.shape[2] = 100, wide.strides[2] = 8;
  const ArrayView strided[2] = {a.view(), wide.view()};
  CHECK(nest(strided).npacks == 1 && !nest(strided).flat && nest(strided).tile_rows == 1);
  wide.shape[2] = 6;
  const ArrayView lean[2] = {narrow.view(), wide.view()};
  CHECK(nest(lean).npacks == 1 && nest(lean).flat && nest(lean).tile_rows == 20);
  Strided turned = dense(DType::kI32, {4, 5, 100});
  turned.strides = {2000, 4, 20};
  const ArrayView across[2] = {a.view(), turned.view()};
  CHECK(nest(across).npacks == 1 && !nest(across).flat && nest(across).tile_rows == 5);
  CHECK(nest(across).outer_count == 4);

  // No elements: nothing to launch, nothing to build.
  Strided none = dense(DType::kI32, {0}), one = dense(DType::kI32, {1});
  const ArrayView empty[2] = {none.view(), one.view()};
  made = instantiate(linear_plan(DType::kI32, 1, 1), empty, nullptr);
  CHECK(made.executor && !made.executor->launches() && made.executor->run() == 0);
}

/// out[kept] = fold over the reduced axes of x, through scratch as long as the columns.
std::uint64_t fold_through_scratch(const KernelArgs* a, std::int64_t begin, std::int64_t end) {
  using T = std::int32_t;
  constexpr std::size_t kScratch = 100;
  if (a == nullptr) return kScratch;
  CHECK(reinterpret_cast<std::uintptr_t>(a->scratch) % 64 == 0);
  for (std::int64_t r = begin; r < end; ++r) {
    for (std::int64_t c = 0; c < a->cols; ++c)
      store<T>(a->ptr[1] + r * a->row[1] + c * a->col[1],
               load<T>(a->ptr[0] + r * a->row[0] + c * a->col[0]) + 1);
    std::memset(a->scratch, 0x55, kScratch);  // its own: the buffer above stays as it is
    T sum = 7;
    for (std::int64_t c = 0; c < a->cols; ++c)
      sum = sum * 3 + load<T>(a->ptr[2] + r * a->row[2] + c * a->col[2]);
    store<T>(a->ptr[3] + r * a->row[3], sum);
  }
  return 0;
}

TEST(nest_scratch_of_a_reduction) {
  Rng rng(8);
  for (int i = 0; i < 300; ++i) {
    const std::vector<std::int64_t> shape = {pick(rng, 1, 4), pick(rng, 1, 4), pick(rng, 1, 4)};
    const auto mask = static_cast<std::uint32_t>(pick(rng, 1, 6));
    auto plan = make_ref<Plan>();
    const int x = plan->buffer(BufferKind::kArg, DType::kI32, {}, 3);
    KernelSpec kernel;
    kernel.reduce_mask = mask;
    std::vector<int> kept_regs, reduced_regs;
    std::vector<Along> row_map, scratch_map;
    for (int axis = 0; axis < 3; ++axis) {
      const bool reduced = (mask >> axis & 1) != 0;
      kernel.extents.push_back(plan->host(HostOp::kExtent, x, -1, axis));
      std::vector<int>& regs = reduced ? reduced_regs : kept_regs;
      (reduced ? scratch_map : row_map).emplace_back(axis);
      regs.push_back(kernel.extents.back());
    }
    const int scratch = plan->buffer(BufferKind::kTemp, DType::kI32, reduced_regs);
    const int out = plan->buffer(BufferKind::kOut, DType::kI32, kept_regs);
    kernel.operands = {{x, {0, 1, 2}, false},
                       {scratch, scratch_map, true},
                       {scratch, scratch_map, false},
                       {out, row_map, true}};
    plan->kernel(kernel);
    plan->output_buffer(out);
    plan->finish();
    Strided in = random_layout(rng, DType::kI32, shape, true);
    fill(rng, &in);
    const ArrayView args[1] = {in.view()};
    const auto ex = make(plan, args, nullptr, [&](const Missing& m) {
      plan->add_variant(m.kernel, m.column_class, reinterpret_cast<void*>(&fold_through_scratch));
    });
    std::vector<std::int32_t> result(64);
    ex->args()[0] = args[0].data;
    ex->outs()[0] = reinterpret_cast<char*>(result.data());
    ex->run();
    ex->drop_workspace();  // the next run gets another
    std::fill(result.begin(), result.end(), 0);
    ex->run();
    const OutSpec& spec = ex->out(0);
    const ArrayView view = {ex->outs()[0], DType::kI32, spec.ndim, spec.shape, spec.strides};
    bool right = true;
    for_each(std::vector<std::int64_t>(spec.shape, spec.shape + spec.ndim),
             [&](const std::vector<std::int64_t>& kept) {
               std::int32_t sum = 7;
               for_each(shape, [&](const std::vector<std::int64_t>& at) {
                 std::size_t k = 0;
                 for (std::size_t axis = 0; axis < 3; ++axis)
                   if ((mask >> axis & 1) == 0 && at[axis] != kept[k++]) return;
                 sum = sum * 3 + load<std::int32_t>(element(args[0], at)) + 1;
               });
               right = right && load<std::int32_t>(element(view, kept)) == sum;
             });
    CHECK(right);
  }
}

TEST(nest_many_kernels_share_the_workspace) {
  Rng rng(9);
  std::size_t saved = 0;
  for (int i = 0; i < 200; ++i) {
    auto plan = make_ref<Plan>();
    std::vector<int> made = {plan->buffer(BufferKind::kArg, DType::kI32, {}, 1)};
    const int n = plan->host(HostOp::kExtent, made[0], -1, 0);
    const int kernels = pick(rng, 2, 9);
    std::vector<std::pair<int, int>> reads;
    int temps = 0;
    for (int k = 0; k < kernels; ++k) {
      const bool last = k == kernels - 1 || pick(rng, 0, 4) == 0;
      temps += !last;
      const int target =
          plan->buffer(last ? BufferKind::kOut : BufferKind::kTemp, DType::kI32, {n});
      const int a = pick(rng, std::max(0, k - 2), k), b = pick(rng, 0, k);
      KernelSpec kernel;
      kernel.extents = {n};
      kernel.operands = {{made[static_cast<std::size_t>(a)], {0}, false},
                         {made[static_cast<std::size_t>(b)], {0}, false},
                         {target, {0}, true}};
      plan->kernel(kernel);
      if (last) plan->output_buffer(target);
      made.push_back(target);
      reads.emplace_back(a, b);
    }
    plan->finish();
    for (int k = 0; k < kernels; ++k) add_linear(*plan, k, DType::kI32);
    const std::int64_t size = pick(rng, 1, 40);
    Strided in = dense(DType::kI32, {size});
    fill(rng, &in);
    const ArrayView args[1] = {in.view()};
    const auto ex = instantiate(plan, args, nullptr).executor;
    CHECK(ex->workspace_bytes() % 64 == 0);
    saved += static_cast<std::size_t>(temps) * 192 -
             std::min<std::size_t>(static_cast<std::size_t>(temps) * 192, ex->workspace_bytes());
    std::vector<std::vector<std::uint32_t>> want(1);
    for (std::int64_t e = 0; e < size; ++e)
      want[0].push_back(load<std::uint32_t>(args[0].data + 4 * e));
    std::vector<std::vector<std::uint32_t>> results(
        ex->out_count(), std::vector<std::uint32_t>(static_cast<std::size_t>(size)));
    for (std::size_t k = 0; k < results.size(); ++k)
      ex->outs()[k] = reinterpret_cast<char*>(results[k].data());
    ex->args()[0] = args[0].data;
    for (int round = 0; round < 2; ++round) {
      ex->run();
      std::size_t out = 0;
      bool right = true;
      want.resize(1);
      for (std::size_t k = 0; k < reads.size(); ++k) {
        want.emplace_back();
        for (std::size_t e = 0; e < static_cast<std::size_t>(size); ++e)
          want.back().push_back(3 * want[static_cast<std::size_t>(reads[k].first)][e] +
                                5 * want[static_cast<std::size_t>(reads[k].second)][e]);
        if (plan->buffers()[static_cast<std::size_t>(made[k + 1])].kind == BufferKind::kOut)
          right = right && results[out++] == want.back();
      }
      CHECK(right);
      ex->drop_workspace();
    }
  }
  CHECK(saved > 0);  // some temporaries shared a place
}

TEST(nest_row_classes) {
  // x[kept, reduced] -> r, full
  const auto ask = [](std::int64_t rows, std::int64_t cols, std::uint32_t mask, bool with_full,
                      bool with_scratch = false) {
    auto plan = make_ref<Plan>();
    const int x = plan->buffer(BufferKind::kArg, DType::kF32, {}, 2);
    const int e[2] = {plan->host(HostOp::kExtent, x, -1, 0), plan->host(HostOp::kExtent, x, -1, 1)};
    const int keep = mask == 1 ? 1 : 0;
    const int out = plan->buffer(BufferKind::kOut, DType::kF32, {e[keep]});
    KernelSpec kernel;
    kernel.extents = {e[0], e[1]};
    kernel.reduce_mask = mask;
    kernel.operands = {{x, {0, 1}, false}, {out, {keep}, true}};
    if (with_full) {
      const int full = plan->buffer(BufferKind::kOut, DType::kF32, {e[0], e[1]});
      kernel.operands.push_back({full, {0, 1}, true});
    }
    if (with_scratch) {  // a value per column, kept and read back
      const int scratch = plan->buffer(BufferKind::kTemp, DType::kF32, {e[1 - keep]});
      kernel.operands.push_back({scratch, {1 - keep}, true});
      kernel.operands.push_back({scratch, {1 - keep}, false});
    }
    plan->kernel(kernel);
    plan->output_buffer(out);
    plan->finish();
    Strided in = dense(DType::kF32, {rows, cols});
    const ArrayView args[1] = {in.view()};
    const Instantiated made = instantiate(plan, args, nullptr);
    if (made.missing.empty()) return std::string();
    const std::string& wanted = made.missing[0].column_class;
    plan->add_variant(0, wanted, reinterpret_cast<void*>(0x10));
    CHECK((plan->any_variant(0, true) != nullptr) == (wanted[0] == 'r'));
    CHECK((plan->any_variant(0, false) != nullptr) == (wanted[0] != 'r'));
    CHECK_THROWS(PlanError, plan->add_variant(0, "rCr", reinterpret_cast<void*>(0x10)));
    // What longer rows need is asked for along, so that no size needs another build.
    return made.missing.size() == 2 ? wanted + " " + made.missing[1].column_class : wanted;
  };
  CHECK(ask(5, 7, 1, false) == "rCC");  // sum over axis 0
  CHECK(ask(5, 7, 1, true) == "rCCC");
  CHECK(ask(5, 7, 2, false) == "CG");        // sum over axis 1
  CHECK(ask(64, 23, 2, false) == "rGC CG");  // of many short rows
  CHECK(ask(64, 1, 2, false) == "rCC CG");
  CHECK(ask(64, 23, 2, true) == "rGCG CGC");
  CHECK(ask(63, 23, 2, false) == "CG");
  CHECK(ask(64, 24, 2, false) == "CG");
  CHECK(ask(5, 1, 1, false) == "CG");                  // one result: a plain sum of a vector
  CHECK(ask(1, 7, 1, false) == "CG");                  // nothing to add
  CHECK(ask(64, 23, 2, false, true) == "rGCHZ CGCC");  // short rows: a panel of scratch
  CHECK(ask(63, 23, 2, false, true) == "CGCC");
  CHECK(ask(64, 23, 1, false, true) == "GGCC");  // of long rows it would not fit the caches
}

TEST(nest_bad_arguments) {
  const auto plan = linear_plan(DType::kI32, 1, 1);
  add_linear(*plan, 0, DType::kI32);
  Strided three = dense(DType::kI32, {3}), four = dense(DType::kI32, {4}),
          wrong = dense(DType::kI64, {3});
  const ArrayView clash[2] = {three.view(), four.view()};
  bool seen = false;
  try {
    instantiate(plan, clash, nullptr);
  } catch (const HostError& e) {
    seen = e.kind == HostErrorKind::kBroadcast && e.a == 3 && e.b == 4 && e.reg == 2;
  }
  CHECK(seen);
  const ArrayView other[2] = {three.view(), wrong.view()};
  CHECK_THROWS(PlanError, instantiate(plan, other, nullptr));
  const ArrayView fine[2] = {three.view(), three.view()};
  const ArrayView outs[1] = {four.view()};
  seen = false;
  try {
    instantiate(plan, fine, nullptr, outs);
  } catch (const OutMismatch& e) {
    seen = e.out == 0 && e.shape == std::vector<std::int64_t>{3};
  }
  CHECK(seen);
  const std::int64_t huge[2] = {std::int64_t{1} << 40, std::int64_t{1} << 40}, zero[2] = {0, 0};
  const auto square = linear_plan(DType::kI32, 2, 2);
  const ArrayView endless[2] = {{nullptr, DType::kI32, 2, huge, zero},
                                {nullptr, DType::kI32, 2, huge, zero}};
  CHECK_THROWS(std::bad_alloc, instantiate(square, endless, nullptr));
}

}  // namespace
}  // namespace opkiln::test
