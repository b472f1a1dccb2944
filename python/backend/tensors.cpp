#include "tensors.hpp"

#include <algorithm>

#include <ATen/MemoryOverlap.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace symmem_c10d {

void require_device(c10::Device device) {
  const int count = c10::impl::VirtualGuardImpl(device.type()).deviceCount();
  TORCH_CHECK_VALUE(
      device.index() >= 0 && device.index() < count, "there is no device ", device,
      ": this process has ", count, " devices");
}

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

std::optional<Pieces> pieces(const std::vector<at::Tensor>& tensors) {
  char* base = nullptr;
  for (const auto& tensor : tensors) {
    if (!tensor.device().is_cpu() || !tensor.is_contiguous()) {
      return std::nullopt;
    }
    auto* const data = static_cast<char*>(tensor.mutable_data_ptr());
    if (tensor.numel() != 0 && (base == nullptr || data < base)) {
      base = data;
    }
  }
  Pieces found{base, moved(tensors.front()).type, {}, {}, 0};
  for (const auto& tensor : tensors) {
    const auto count = moved(tensor).count;
    int64_t offset = 0;
    if (count != 0) {
      const auto size = static_cast<int64_t>(tensor.nbytes()) / count;
      const auto distance = static_cast<const char*>(tensor.const_data_ptr()) - base;
      if (distance % size != 0) {
        return std::nullopt;
      }
      offset = distance / size;
      found.bytes = std::max(found.bytes, static_cast<size_t>(distance) + tensor.nbytes());
    }
    found.counts.push_back(count);
    found.offsets.push_back(offset);
  }
  return found;
}

std::vector<int64_t> moved_counts(const std::vector<at::Tensor>& tensors) {
  std::vector<int64_t> counts;
  for (const auto& tensor : tensors) {
    counts.push_back(moved(tensor).count);
  }
  return counts;
}

at::Tensor joined(const std::vector<at::Tensor>& tensors, bool& shared) {
  const auto& first = tensors.front();
  const auto* next = static_cast<const char*>(first.const_data_ptr());
  const auto storage = first.storage();
  int64_t count = 0;
  shared = true;
  for (const auto& tensor : tensors) {
    shared = shared && tensor.is_contiguous() && tensor.const_data_ptr() == next &&
        tensor.storage().is_alias_of(storage);
    next += tensor.nbytes();
    count += tensor.numel();
  }
  if (shared) {
    return first.as_strided({count}, {1}, first.storage_offset());
  }
  return at::empty({count}, first.options());
}

at::Tensor contents(const std::vector<at::Tensor>& tensors) {
  bool shared = false;
  auto all = joined(tensors, shared);
  int64_t offset = 0;
  for (size_t i = 0; !shared && i < tensors.size(); ++i) {
    all.narrow(0, offset, tensors[i].numel()).copy_(tensors[i].reshape({-1}));
    offset += tensors[i].numel();
  }
  return all;
}

} // namespace symmem_c10d
