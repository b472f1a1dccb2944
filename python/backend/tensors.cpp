#include "tensors.hpp"

#include <algorithm>

#include <ATen/MemoryOverlap.h>

namespace symmem_c10d {

void require_separate(const std::vector<at::Tensor>& outputs) {
  for (const auto& tensor : outputs) {
    TORCH_CHECK_VALUE(
        at::has_internal_overlap(tensor) != at::MemOverlap::Yes,
        "elements of an output share memory (sizes ", tensor.sizes(), ", strides ",
        tensor.strides(), "); pass a tensor without overlap, for example a contiguous() one");
  }
}

void require_alike(const std::vector<at::Tensor>& tensors) {
  for (const auto& tensor : tensors) {
    require_dense(tensor);
    TORCH_CHECK_VALUE(
        tensor.scalar_type() == tensors.front().scalar_type() &&
            tensor.device() == tensors.front().device(),
        "tensors of one operation must have the same type and device, but one has ",
        tensors.front().scalar_type(), " on ", tensors.front().device(), " and another ",
        tensor.scalar_type(), " on ", tensor.device());
  }
}

void require_same(const at::Tensor& one, const at::Tensor& other) {
  require_alike({one, other});
  TORCH_CHECK_VALUE(
      one.numel() == other.numel(), "two tensors must have the same size, but have ",
      one.numel(), " and ", other.numel(), " elements");
}

void require_parts(const at::Tensor& whole, const at::Tensor& part, int size) {
  require_alike({whole, part});
  TORCH_CHECK_VALUE(
      whole.numel() == part.numel() * size, "a tensor has ", whole.numel(),
      " elements, but needs ", size, " parts of ", part.numel(), " elements");
}

bool same_size(const std::vector<at::Tensor>& tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [&](const at::Tensor& tensor) {
    return tensor.numel() == tensors.front().numel();
  });
}

at::Tensor concatenated(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> flat;
  for (const auto& tensor : tensors) {
    flat.push_back(tensor.reshape({-1}));
  }
  return at::cat(flat);
}

std::vector<int64_t> moved_counts(const std::vector<at::Tensor>& tensors) {
  std::vector<int64_t> counts;
  for (const auto& tensor : tensors) {
    counts.push_back(moved(tensor).count);
  }
  return counts;
}

at::Tensor rows(const std::vector<at::Tensor>& tensors, bool& shared) {
  const auto& first = tensors.front();
  const auto size = static_cast<int64_t>(tensors.size());
  const auto* next = static_cast<const char*>(first.const_data_ptr());
  const auto storage = first.storage();
  shared = std::all_of(tensors.begin(), tensors.end(), [&](const at::Tensor& tensor) {
    const bool follows = tensor.is_contiguous() && tensor.const_data_ptr() == next &&
        tensor.storage().is_alias_of(storage);
    next += tensor.nbytes();
    return follows;
  });
  if (shared) {
    return first.as_strided({size, first.numel()}, {first.numel(), 1}, first.storage_offset());
  }
  return at::empty({size, first.numel()}, first.options());
}

} // namespace symmem_c10d
