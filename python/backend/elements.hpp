// PyTorch's element types and reductions in terms of symmem.h.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

namespace symmem_c10d {

// Elements describes the contents of a tensor: a number of elements of one type of symmem.h.
struct Elements {
  int type;
  int64_t count;
};

// Returns the elements of a tensor whose values are only moved. A type without an equivalent is
// moved as bytes.
Elements moved(const at::Tensor& tensor);

// Reduction is a reduction of symmem.h over elements of one type.
struct Reduction {
  int type;
  int op;
};

// Returns the reduction for a tensor. Throws a NotImplementedError with the names of the type and
// the operation if symmem cannot compute it. PREMUL_SUM is SYMMEM_SUM, see scaled.
Reduction reduction(const at::Tensor& tensor, const c10d::ReduceOp& op);

// Returns the input of a reduction: the product of the tensor and the factor for PREMUL_SUM, else
// the tensor.
at::Tensor scaled(const at::Tensor& tensor, const c10d::ReduceOp& op);

} // namespace symmem_c10d
