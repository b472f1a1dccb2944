// Allocates tensors in symmetric memory, which DDP and FSDP2 request from their backend.
#include <ATen/ATen.h>

#include <c10/core/impl/VirtualGuardImpl.h>

#include "group.hpp"
#include "tensors.hpp"

namespace symmem_c10d {

bool Group::supportsTensorAlloc(c10::DeviceIndex device) {
  const auto& part = device < 0 ? parts_.host : parts_.device; // A negative index means the CPU.
  return part.handle != 0;
}

// All ranks of the group must allocate tensors of the same sizes in the same order. During a
// capture, it returns an ordinary tensor, whose memory belongs to the graph.
at::Tensor Group::allocateTensor(long size, at::TensorOptions options) {
  auto device = options.device();
  uint64_t stream = 0; // on the CPU, any number is a valid stream
  if (!device.is_cpu()) {
    const c10::impl::VirtualGuardImpl devices(device.type());
    device = device.has_index() ? device : devices.getDevice();
    require_device(device);
    stream = reinterpret_cast<uint64_t>(devices.getStream(device).native_handle());
  }
  const auto bytes = static_cast<size_t>(size) * options.dtype().itemsize();
  if (bytes == 0) {
    return at::empty({size}, options);
  }
  void* address = nullptr;
  const int code = library_->alloc_on(pool(device), bytes, device.index(), stream, &address);
  if (code == SYMMEM_ERR_CAPTURING) {
    return at::empty({size}, options.device(device));
  }
  library_->check(code);
  allocated_ = true;
  auto release = [library = library_](void* memory) { library->free(memory); };
  return at::for_blob(address, {size})
      .deleter(std::move(release))
      .target_device(device)
      .options(options.device(device))
      .make_tensor();
}

// Returns the pool for tensors on a device. The first call may open one whose domain is the group.
int Group::pool(c10::Device device) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto& part = device.is_cpu() ? parts_.host : parts_.device;
  auto& pool = pools_.try_emplace(device.type(), part.pool).first->second;
  if (pool < 0) {
    library_->check(library_->pool_open(handle(device), 0, "", &pool));
  }
  return pool;
}

} // namespace symmem_c10d
