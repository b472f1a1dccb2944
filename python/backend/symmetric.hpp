// Implements PyTorch's symmetric memory (torch.ops.symm_mem, torch.distributed._symmetric_memory)
// with symmem's pools.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/symm_mem/SymmetricMemory.hpp>

#include "library.hpp"

namespace symmem_c10d {

// World holds the addresses of functions in Python.
struct World {
  int (*pool)(); // returns the number of the main world's pool; -1 if the world is closed
  // Returns the symmem group of the process group with the given name, opening it if necessary. On
  // an error, writes the message to text and returns 0.
  uint64_t (*group)(const char* name, size_t size, char* text);
};

// Range is a range of a window's memory.
struct Range {
  size_t bytes;
  void* own; // this rank's memory
  std::vector<void*> peers; // the memory of all ranks of a group, by group rank
};

// Members describes a group.
struct Members {
  uint64_t handle;
  int rank;
  int size;
  std::chrono::milliseconds timeout;
};

// Handle is the result of rendezvous. It holds the addresses of an allocation on all ranks of a
// group, and a signal pad of its own. It is safe for concurrent use.
//
// On GPUs, barrier is queued on the current stream. All other waits block the caller, and
// put_signal and wait_signal on a GPU first wait for the current stream. The timeout of the group
// bounds all waits unless the caller passes another one. The error names the missing ranks.
class Handle final : public c10d::symmetric_memory::SymmetricMemory {
 public:
  Handle(
      std::shared_ptr<const Library> library,
      Members members,
      c10::Device device,
      Range buffer,
      size_t offset,
      Range pad);
  ~Handle() override;

  std::vector<void*> get_buffer_ptrs() override;
  std::vector<void*> get_signal_pad_ptrs() override;
  void** get_buffer_ptrs_dev() override;
  void** get_signal_pad_ptrs_dev() override;
  size_t get_buffer_size() override;
  size_t get_offset() override;
  bool has_multicast_support() override;
  void* get_multicast_ptr() override;
  void barrier(int channel, size_t timeout_ms) override;
  void put_signal(int destination, int channel, size_t timeout_ms) override;
  void wait_signal(int source, int channel, size_t timeout_ms) override;
  int get_rank() override;
  int get_world_size() override;
  c10::Device get_device() override;
  bool world_within_direct_access() override;

  // Returns the size of a signal pad: PyTorch's setting when the handle was made.
  size_t pad_bytes() const;
  // Returns the offset of the barrier rows from the beginning of a signal pad.
  size_t barrier_offset() const;
  // Like get_signal_pad, but with bounds from pad_bytes, not from PyTorch's current setting.
  at::Tensor pad(int rank, std::vector<int64_t> sizes, c10::ScalarType dtype, int64_t offset) const;

 private:
  // Waits until a signal word has the value `from`, and then sets it to `to`.
  void exchange(uint32_t* word, uint32_t from, uint32_t to, int rank, size_t timeout_ms) const;
  bool changed(uint32_t* word, uint32_t from, uint32_t to) const;
  uint32_t* word(int pad, int channel, int from) const;

  const std::shared_ptr<const Library> library_;
  const Members members_;
  const c10::Device device_;
  const Range buffer_, pad_;
  const size_t offset_;
  const at::Tensor addresses_; // on the device: first all buffers, then all pads
};

// Allocator allocates symmetric memory. It is safe for concurrent use.
//
// Memory without a group name comes from the pool of the main world, so all ranks of the world must
// allocate it in the same order. Memory for a group comes from a pool of the group.
class Allocator final : public c10d::symmetric_memory::SymmetricMemoryAllocator {
 public:
  Allocator(std::shared_ptr<const Library> library, World world, c10::DeviceType type)
      : library_(std::move(library)), world_(world), type_(type) {}

  void* alloc(size_t size, int device, const std::optional<std::string>& group) override;
  void free(void* address) override;
  size_t get_alloc_size(void* address) override;
  c10::intrusive_ptr<c10d::symmetric_memory::SymmetricMemory> rendezvous(
      void* address,
      const std::optional<std::string>& group) override;
  bool has_multicast_support(int device) override;
  bool has_allocation(void* address); // overrides a method since PyTorch 2.14
  c10::DeviceType supported_device_type() override;
  std::string name() override;

  // Creates a handle of any range of symmem's memory. Collective over the group.
  c10::intrusive_ptr<Handle> handle(
      void* address,
      size_t bytes,
      int pool,
      c10::Device device,
      const Members& members);

 private:
  struct Block {
    size_t bytes;
    c10::Device device;
    int pool;
    std::string group; // the name passed to alloc, or empty
    std::map<uint64_t, c10::intrusive_ptr<Handle>> handles; // by the handle of the group
  };
  using Blocks = std::map<char*, Block>;

  Members members(const std::string& group) const;
  int pool(const std::string& group);
  int group_pool(uint64_t group);
  Blocks::iterator find(void* address);
  c10::intrusive_ptr<Handle> known(char* base, size_t offset, uint64_t group);
  Range allocate_pad(const Members& members, c10::Device device);
  Range shared(const Members& members, int pool, void* address, size_t bytes, c10::Device device)
      const;

  const std::shared_ptr<const Library> library_;
  const World world_;
  const c10::DeviceType type_;
  std::mutex mutex_;
  Blocks blocks_; // by address; guarded by mutex_
  std::map<uint64_t, int> pools_; // by the handle of the group; guarded by mutex_
};

} // namespace symmem_c10d
