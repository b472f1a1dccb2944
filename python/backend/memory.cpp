// Allocates tensors in symmetric memory, which DDP and FSDP2 request from their backend.
#include <ATen/ATen.h>

#include "group.hpp"

namespace symmem_c10d {

bool Group::supportsTensorAlloc(c10::DeviceIndex device) {
  return device < 0 && parts_.host.handle != 0; // A negative index stands for the CPU.
}

// All ranks of the group must allocate tensors of the same sizes in the same order.
at::Tensor Group::allocateTensor(long size, at::TensorOptions options) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      options.device().is_cpu(), "allocateTensor of symmem supports only the CPU, not ",
      options.device(), "; allocate symmetric tensors on GPUs in a scope of symmem.use()");
  const auto bytes = static_cast<size_t>(size) * options.dtype().itemsize();
  if (bytes == 0) {
    return at::empty({size}, options);
  }
  void* address = nullptr;
  library_->check(library_->alloc(pool(), bytes, 0, &address));
  allocated_ = true;
  auto release = [library = library_](void* memory) { library->free(memory); };
  return at::from_blob(address, {size}, std::move(release), options);
}

// Returns the pool whose domain is the group. The first call opens it.
int Group::pool() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (pool_ < 0) {
    library_->check(library_->pool_open(handle(c10::kCPU), 0, "", &pool_));
  }
  return pool_;
}

} // namespace symmem_c10d
