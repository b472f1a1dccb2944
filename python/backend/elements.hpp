// Converts PyTorch's element types and reductions to those of symmem.h.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

namespace symmem_c10d {

// Elements describes the contents of a tensor as a number of elements of a type in symmem.h.
struct Elements {
  int type;
  int64_t count;
};

// Returns the elements for copying a tensor's values. Types without an equivalent in symmem.h are
// copied as bytes.
Elements moved(const at::Tensor& tensor);

// Reduction is a type and a reduction of symmem.h.
struct Reduction {
  int type;
  int op;
};

// Returns the reduction for a tensor. Throws a NotImplementedError that names the type and the
// operation if symmem does not support it. PREMUL_SUM becomes SYMMEM_SUM of the scaled input.
Reduction reduction(const at::Tensor& tensor, const c10d::ReduceOp& op);

// Returns the input of a reduction, which is the tensor multiplied by the factor for PREMUL_SUM and
// the tensor itself otherwise.
at::Tensor scaled(const at::Tensor& tensor, const c10d::ReduceOp& op);

} // namespace symmem_c10d
