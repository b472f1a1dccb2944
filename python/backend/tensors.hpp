// Checks tensors and makes them contiguous.
#pragma once

#include <optional>

#include <ATen/ATen.h>

#include "elements.hpp"

namespace symmem_c10d {

// Throws unless the tensor is dense.
inline void require_dense(const at::Tensor& tensor) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      tensor.layout() == at::kStrided, "symmem does not support tensors with layout ",
      tensor.layout(), "; convert them with to_dense()");
}

// Throws unless a device with this number exists.
void require_device(c10::Device device);

// Returns the only tensor of a list.
inline at::Tensor& only(std::vector<at::Tensor>& tensors) {
  TORCH_CHECK_VALUE(tensors.size() == 1, "symmem needs exactly one tensor, not ", tensors.size());
  require_dense(tensors.front());
  return tensors.front();
}

// Output provides contiguous memory for the output of a library call. If the tensor itself is not
// contiguous, this is a copy, which finish writes back.
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

// Throws if elements of an output share memory, as in a tensor that expand() returned.
void require_separate(const std::vector<at::Tensor>& outputs);

// Throws unless all tensors are dense and have the same type and device.
void require_alike(const std::vector<at::Tensor>& tensors);

// Throws unless two tensors have the same type, device and number of elements.
void require_same(const at::Tensor& one, const at::Tensor& other);

// Throws unless `whole` consists of `size` parts like `part`.
void require_parts(const at::Tensor& whole, const at::Tensor& part, int size);

// Returns whether all tensors have the same number of elements.
bool same_size(const std::vector<at::Tensor>& tensors);

// Returns whether an operation is faster with parts of this size where they are than with a
// contiguous copy of them.
inline bool is_large(const at::Tensor& part) {
  return part.device().is_cpu() && part.nbytes() >= size_t{1} << 16;
}

// Pieces describes separate tensors as parts of one buffer.
struct Pieces {
  void* base;
  int type; // of the elements, as the function `moved` returns it
  std::vector<int64_t> counts, offsets; // in elements
  size_t bytes; // from the base to the end of the last piece
};

// Returns the pieces of tensors, or nothing if a tensor is not contiguous, is on a device, or does
// not begin a whole number of elements after the base.
std::optional<Pieces> pieces(const std::vector<at::Tensor>& tensors);

// Returns the number of elements of each tensor, as the function `moved` counts them.
std::vector<int64_t> moved_counts(const std::vector<at::Tensor>& tensors);

// Returns a one-dimensional tensor for the elements of all tensors, one after another. If the
// tensors are adjacent in memory, the result shares their memory, and `shared` is set; otherwise it
// is uninitialized.
at::Tensor joined(const std::vector<at::Tensor>& tensors, bool& shared);

// Returns the elements of all tensors, one after another, in one dimension. If the tensors are
// adjacent in memory, the result shares their memory.
at::Tensor contents(const std::vector<at::Tensor>& tensors);

} // namespace symmem_c10d
