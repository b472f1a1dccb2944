#include "elements.hpp"

#include <optional>

#include <ATen/ATen.h>

#include "symmem.h"

namespace symmem_c10d {
namespace {

// Returns the type of symmem.h with the same arithmetic.
std::optional<int> arithmetic(at::ScalarType type) {
  switch (type) {
    case at::kDouble:
    case at::kComplexDouble:
      return SYMMEM_FLOAT64;
    case at::kFloat:
    case at::kComplexFloat:
      return SYMMEM_FLOAT32;
    case at::kHalf:
    case at::kComplexHalf:
      return SYMMEM_FLOAT16;
    case at::kBFloat16:
      return SYMMEM_BFLOAT16;
    case at::kChar:
      return SYMMEM_INT8;
    case at::kShort:
      return SYMMEM_INT16;
    case at::kUInt16:
      return SYMMEM_UINT16;
    case at::kUInt32:
      return SYMMEM_UINT32;
    case at::kUInt64:
      return SYMMEM_UINT64;
    case at::kInt:
      return SYMMEM_INT32;
    case at::kLong:
      return SYMMEM_INT64;
    case at::kByte:
    case at::kBool:
      return SYMMEM_UINT8;
    default:
      return std::nullopt;
  }
}

const char* name(c10d::ReduceOp::RedOpType op) {
  switch (op) {
    case c10d::ReduceOp::SUM:
      return "SUM";
    case c10d::ReduceOp::AVG:
      return "AVG";
    case c10d::ReduceOp::PRODUCT:
      return "PRODUCT";
    case c10d::ReduceOp::MIN:
      return "MIN";
    case c10d::ReduceOp::MAX:
      return "MAX";
    case c10d::ReduceOp::BAND:
      return "BAND";
    case c10d::ReduceOp::BOR:
      return "BOR";
    case c10d::ReduceOp::BXOR:
      return "BXOR";
    case c10d::ReduceOp::PREMUL_SUM:
      return "PREMUL_SUM";
    default:
      return "UNUSED";
  }
}

std::optional<int> operation(c10d::ReduceOp::RedOpType op) {
  switch (op) {
    case c10d::ReduceOp::SUM:
    case c10d::ReduceOp::PREMUL_SUM:
      return SYMMEM_SUM;
    case c10d::ReduceOp::AVG:
      return SYMMEM_AVG;
    case c10d::ReduceOp::PRODUCT:
      return SYMMEM_PROD;
    case c10d::ReduceOp::MIN:
      return SYMMEM_MIN;
    case c10d::ReduceOp::MAX:
      return SYMMEM_MAX;
    case c10d::ReduceOp::BAND:
      return SYMMEM_BAND;
    case c10d::ReduceOp::BOR:
      return SYMMEM_BOR;
    case c10d::ReduceOp::BXOR:
      return SYMMEM_BXOR;
    default:
      return std::nullopt;
  }
}

// Returns the reduction of bools, which are bytes with the value 0 or 1. Sums and products are
// logical, as in NCCL.
std::optional<int> logical(c10d::ReduceOp::RedOpType op) {
  switch (op) {
    case c10d::ReduceOp::SUM:
      return SYMMEM_MAX;
    case c10d::ReduceOp::PRODUCT:
      return SYMMEM_MIN;
    case c10d::ReduceOp::AVG:
    case c10d::ReduceOp::PREMUL_SUM:
      return std::nullopt;
    default:
      return operation(op);
  }
}

bool bitwise(int op) {
  return op == SYMMEM_BAND || op == SYMMEM_BOR || op == SYMMEM_BXOR;
}

} // namespace

Elements moved(const at::Tensor& tensor) {
  if (const auto type = arithmetic(tensor.scalar_type())) {
    return {*type, tensor.is_complex() ? 2 * tensor.numel() : tensor.numel()};
  }
  return {SYMMEM_UINT8, static_cast<int64_t>(tensor.nbytes())};
}

Reduction reduction(const at::Tensor& tensor, const c10d::ReduceOp& op) {
  const auto kind = tensor.scalar_type();
  const auto type = arithmetic(kind);
  auto found = kind == at::kBool ? logical(op.op_) : operation(op.op_);
  if (tensor.is_complex() && !c10d::isComplexViewAsRealAllowed(op)) {
    found = std::nullopt;
  }
  if (found && bitwise(*found) && tensor.is_floating_point()) {
    found = std::nullopt;
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      type && found, "symmem does not support ", name(op.op_), " of ", kind, " tensors");
  return {*type, *found};
}

at::Tensor scaled(const at::Tensor& tensor, const c10d::ReduceOp& op) {
  if (op.op_ != c10d::ReduceOp::PREMUL_SUM) {
    return tensor;
  }
  const auto* factor = dynamic_cast<c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  TORCH_CHECK_VALUE(factor != nullptr, "PREMUL_SUM has no factor");
  const bool number = !factor->tensor_factor.defined();
  return number ? tensor.mul(factor->double_factor).to(tensor.scalar_type())
                : tensor.mul(factor->tensor_factor).to(tensor.scalar_type());
}

} // namespace symmem_c10d
