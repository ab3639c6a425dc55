// test_product.cpp: products of matrices in every layout, by a kernel and by a BLAS, whole and cut.
#include <algorithm>

#include "core/blas.h"
#include "core/errors.h"
#include "support.h"

namespace opkiln::test {
namespace {

/// What an emitted kernel does, one element after the other.
std::uint64_t by_loops(const KernelArgs* args, std::int64_t begin, std::int64_t end) {
  if (args == nullptr) return 64;  // scratch
  const std::int64_t *s = args->col, *extent = args->far;
  for (std::int64_t r = begin; r < end; ++r)
    for (std::int64_t i = 0; i < extent[0]; ++i)
      for (std::int64_t j = 0; j < extent[1]; ++j) {
        double sum = 0;
        for (std::int64_t l = 0; l < extent[2]; ++l)
          sum += load<double>(args->ptr[0] + r * args->row[0] + i * s[0] + l * s[2]) *
                 load<double>(args->ptr[1] + r * args->row[1] + j * s[4] + l * s[5]);
        store(args->ptr[2] + r * args->row[2] + i * s[6] + j * s[7], sum);
      }
  return 0;
}

int gemm_calls = 0;

/// cblas_dgemm, for row-major matrices.
template <class Int>
void gemm(int order, int trans_a, int trans_b, Int m, Int n, Int k, double alpha, const double* a,
          Int lda, const double* b, Int ldb, double beta, double* c, Int ldc) {
  ++gemm_calls;
  const bool flip_a = trans_a == 112, flip_b = trans_b == 112;
  CHECK(order == 101 && alpha == 1 && beta == 0);
  CHECK(lda >= std::max<Int>(flip_a ? m : k, 1) && ldb >= std::max<Int>(flip_b ? k : n, 1));
  CHECK(ldc >= std::max<Int>(n, 1));
  for (Int i = 0; i < m; ++i)
    for (Int j = 0; j < n; ++j) {
      double sum = 0;
      for (Int l = 0; l < k; ++l)
        sum += a[flip_a ? l * lda + i : i * lda + l] * b[flip_b ? j * ldb + l : l * ldb + j];
      c[i * ldc + j] = sum;
    }
}

/// a @ b with batches that broadcast.
Ref<Plan> product_plan(int rank_a, int rank_b) {
  auto plan = make_ref<Plan>();
  const int a = plan->buffer(BufferKind::kArg, DType::kF64, {}, rank_a);
  const int b = plan->buffer(BufferKind::kArg, DType::kF64, {}, rank_b);
  const int batch = std::max(rank_a, rank_b) - 2;
  const auto extent = [&](int buffer, int axis) {
    return plan->host(HostOp::kExtent, buffer, -1, axis);
  };
  KernelSpec kernel;
  kernel.product = true;
  kernel.reduce_mask = std::uint32_t{1} << (batch + 2);
  OperandSpec read_a{a, {}, false}, read_b{b, {}, false}, write{-1, {}, true};
  for (int axis = 0; axis < batch; ++axis) {
    const int in_a = axis - (batch + 2 - rank_a), in_b = axis - (batch + 2 - rank_b);
    const int ext_a = in_a >= 0 ? extent(a, in_a) : -1, ext_b = in_b >= 0 ? extent(b, in_b) : -1;
    kernel.extents.push_back(ext_a < 0   ? ext_b
                             : ext_b < 0 ? ext_a
                                         : plan->host(HostOp::kBcast, ext_a, ext_b));
    if (in_a >= 0) read_a.axes.emplace_back(axis);
    if (in_b >= 0) read_b.axes.emplace_back(axis);
    write.axes.emplace_back(axis);
  }
  kernel.extents.push_back(extent(a, rank_a - 2));
  kernel.extents.push_back(extent(b, rank_b - 1));
  const std::vector<int> result = kernel.extents;
  kernel.extents.push_back(extent(a, rank_a - 1));
  for (const int axis : {batch, batch + 2}) read_a.axes.emplace_back(axis);
  for (const int axis : {batch + 2, batch + 1}) read_b.axes.emplace_back(axis);
  for (const int axis : {batch, batch + 1}) write.axes.emplace_back(axis);
  write.buffer = plan->buffer(BufferKind::kOut, DType::kF64, result);
  kernel.operands = {read_a, read_b, write};
  plan->kernel(kernel);
  plan->output_buffer(write.buffer);
  plan->finish();
  return plan;
}

void check_product(const ArrayView& a, const ArrayView& b, const Strided& out, std::int64_t k,
                   const char* what) {
  Strided copy = out;
  const ArrayView have = copy.view();
  bool same = true;
  for_each(out.shape, [&](const std::vector<std::int64_t>& at) {
    std::vector<std::int64_t> left = at, right = at;
    double sum = 0;
    for (std::int64_t l = 0; l < k; ++l) {
      left[left.size() - 1] = right[right.size() - 2] = l;
      sum += load<double>(element(a, left)) * load<double>(element(b, right));
    }
    same = same && load<double>(element(have, at)) == sum;
  });
  report(same, what, __FILE__, __LINE__);
}

void product_case(Rng& rng, bool library) {
  std::vector<std::int64_t> batch, left, right;
  for (int i = pick(rng, 0, 3); i-- > 0;)
    batch.push_back(pick(rng, 0, 12) == 0 ? 0 : pick(rng, 1, 3));
  const auto part = [&](std::vector<std::int64_t>* shape, std::int64_t rows, std::int64_t cols) {
    const int drop = pick(rng, 0, 2) == 0 ? pick(rng, 0, static_cast<int>(batch.size())) : 0;
    for (std::size_t i = static_cast<std::size_t>(drop); i < batch.size(); ++i)
      shape->push_back(pick(rng, 0, 3) == 0 ? 1 : batch[i]);
    shape->push_back(rows), shape->push_back(cols);
  };
  const std::int64_t m = pick(rng, 1, 4), n = pick(rng, 1, 4), k = pick(rng, library ? 1 : 0, 4);
  part(&left, m, k), part(&right, k, n);
  Strided a = random_layout(rng, DType::kF64, left, true);
  Strided b = random_layout(rng, DType::kF64, right, true);
  fill(rng, &a), fill(rng, &b);
  const auto plan = product_plan(static_cast<int>(left.size()), static_cast<int>(right.size()));
  plan->add_variant(0, "CCC", reinterpret_cast<void*>(&by_loops));
  const ArrayView args[2] = {a.view(), b.view()};
  Instantiated made = instantiate(plan, args, nullptr);
  if (!CHECK(made.executor)) return;
  const OutSpec& spec = made.executor->out(0);
  std::vector<std::int64_t> shape(spec.shape, spec.shape + spec.ndim);
  Strided out = pick(rng, 0, 1) == 0 ? random_layout(rng, DType::kF64, shape, false)
                                     : dense(DType::kF64, shape);
  const ArrayView outs[1] = {out.view()};
  made = instantiate(plan, args, nullptr, outs);
  Executor& ex = *made.executor;
  for (int i = 0; i < 2; ++i) ex.args()[i] = args[i].data;
  ex.outs()[0] = outs[0].data;
  const int before = gemm_calls;
  CHECK(ex.run() == 0);
  check_product(args[0], args[1], out, k, library ? "by a BLAS" : "by a kernel");
  CHECK(!ex.launches() || (gemm_calls > before) == library);
  std::fill(out.bytes.begin(), out.bytes.end(), 33);
  for (std::size_t nest = 0; nest < ex.nest_count(); ++nest)
    for (std::int64_t at = 0; at < ex.nest(nest).units; ++at)
      ex.run_range(ex.nest(nest), at, at + 1);
  check_product(args[0], args[1], out, k, "place by place");
}

}  // namespace

TEST(product_by_a_kernel) {
  Rng rng(1);
  for (int i = 0; i < 400; ++i) product_case(rng, false);
}

TEST(product_by_a_blas) {
  Rng rng(2);
  for (const bool wide : {false, true}) {
    void* const address =
        wide ? reinterpret_cast<void*>(&gemm<std::int64_t>) : reinterpret_cast<void*>(&gemm<int>);
    set_gemm(DType::kF64, address, wide, 1);
    for (int i = 0; i < 400; ++i) product_case(rng, true);
  }
  set_gemm(DType::kF64, nullptr, false, 1);
}

TEST(product_plans_are_checked) {
  auto plan = make_ref<Plan>();
  const int a = plan->buffer(BufferKind::kArg, DType::kF64, {}, 2);
  KernelSpec kernel;
  kernel.product = true;
  kernel.extents = {plan->host(HostOp::kExtent, a, -1, 0), plan->host(HostOp::kExtent, a, -1, 1)};
  kernel.operands = {OperandSpec{a, {}, false}};
  CHECK_THROWS(PlanError, plan->kernel(kernel));
}

}  // namespace opkiln::test
