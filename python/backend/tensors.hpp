// Checks and contiguous forms of tensors.
#pragma once

#include <ATen/ATen.h>

#include "elements.hpp"

namespace symmem_c10d {

// Throws unless the tensor is dense memory.
inline void require_dense(const at::Tensor& tensor) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      tensor.layout() == at::kStrided, "symmem has no collectives of sparse tensors, here ",
      tensor.layout(), ": convert them with to_dense()");
}

// Returns the only tensor of a list.
inline at::Tensor& only(std::vector<at::Tensor>& tensors) {
  TORCH_CHECK_VALUE(tensors.size() == 1, "symmem takes one tensor, not ", tensors.size());
  require_dense(tensors.front());
  return tensors.front();
}

// Output is a tensor that a call of the library writes: the tensor, or a contiguous copy of it
// that finish writes back.
class Output {
 public:
  explicit Output(const at::Tensor& tensor) : tensor_(tensor), flat_(tensor.contiguous()) {}

  void* data() const {
    return flat_.mutable_data_ptr();
  }

  const at::Tensor& flat() const {
    return flat_;
  }

  void finish() const {
    if (!flat_.is_same(tensor_)) {
      tensor_.copy_(flat_);
    }
  }

 private:
  const at::Tensor tensor_, flat_;
};

// Throws if several elements of a tensor that an operation writes share memory, as in a tensor of
// expand().
void require_separate(const std::vector<at::Tensor>& outputs);

// Throws unless all tensors have the type and the device of the first.
void require_alike(const std::vector<at::Tensor>& tensors);

// Throws unless two tensors have the same type, device and number of elements.
void require_same(const at::Tensor& one, const at::Tensor& other);

// Throws unless one tensor has a part for each rank that is like the other tensor.
void require_parts(const at::Tensor& whole, const at::Tensor& part, int size);

// Returns whether all tensors have the same number of elements.
bool same_size(const std::vector<at::Tensor>& tensors);

// Returns the tensors one after the other as one tensor.
at::Tensor concatenated(const std::vector<at::Tensor>& tensors);

// Returns the numbers of elements of symmem.h's types in tensors.
std::vector<int64_t> moved_counts(const std::vector<at::Tensor>& tensors);

// Returns a contiguous tensor whose rows are the tensors, which have the same number of elements.
// It shares their memory if they follow each other there; else its contents are undefined.
at::Tensor rows(const std::vector<at::Tensor>& tensors, bool& shared);

} // namespace symmem_c10d
