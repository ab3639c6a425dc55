// blas.h: products of large matrices, by the gemm functions of a BLAS that the face has found.
#pragma once

#include <cstdint>

#include "abi.h"
#include "dtype.h"

namespace opkiln::core {

/// The cblas_?gemm of a dtype of floats, from now on; null takes it back. `wide` says that its
/// integers have 64 bits. Products of fewer than `least` numbers m * n * k stay with kernels.
void set_gemm(DType dtype, void* gemm, bool wide, std::int64_t least);

/// A product that a BLAS serves in place of a kernel: `fn` is null where none does.
struct Gemm {
  KernelFn fn = nullptr;
  std::int64_t scratch = 0;  // bytes, for what its strides cannot express
};

/// `extents` are m, n and k; `strides` those of a, b and out along them, as KernelArgs has them.
Gemm find_gemm(DType dtype, const std::int64_t* extents, const std::int64_t* strides);

}  // namespace opkiln::core
