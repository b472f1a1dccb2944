// The symmetric memory of torch.ops.symm_mem and torch.distributed._symmetric_memory, in pools of
// symmem.
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

// World holds functions of Python's process, by address.
struct World {
  int (*pool)(); // the number of the main world's pool; -1 if the world is closed
  // Returns symmem's group of a process group, by the name that PyTorch gave it, and opens the
  // group if necessary. Returns 0 after an error, whose text it writes.
  uint64_t (*group)(const char* name, size_t size, char* text);
};

// Range is memory of a window: its address on this rank, and on all ranks of a group.
struct Range {
  void* own;
  std::vector<void*> peers; // by group rank
};

// Members describes a group.
struct Members {
  uint64_t handle;
  int rank;
  int size;
  std::chrono::milliseconds timeout;
};

// Handle is what rendezvous returns: an allocation as the ranks of a group see it, and a signal pad
// that belongs to this group and allocation alone. It is safe for concurrent use.
//
// On GPUs, barrier is queued on the current stream. Otherwise the caller waits; for a signal on a
// GPU it first waits for the current stream. All waits end with the timeout of the group at the
// latest, and the error names the ranks that are missing.
class Handle final : public c10d::symmetric_memory::SymmetricMemory {
 public:
  Handle(
      std::shared_ptr<const Library> library,
      Members members,
      c10::Device device,
      Range buffer,
      size_t bytes,
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

 private:
  // Waits until a signal word has the value `from`, and sets it to `to`.
  void exchange(uint32_t* word, uint32_t from, uint32_t to, int rank, size_t timeout_ms) const;
  bool changed(uint32_t* word, uint32_t from, uint32_t to) const;
  uint32_t* word(int pad, int channel, int from) const;

  const std::shared_ptr<const Library> library_;
  const Members members_;
  const c10::Device device_;
  const Range buffer_, pad_;
  const size_t bytes_, offset_;
  const at::Tensor addresses_; // of all buffers, then of all pads, on the device
};

// Allocator allocates symmetric memory. It is safe for concurrent use.
//
// Memory without a group's name belongs to the pool of the main world, so all ranks of the world
// must allocate it in the same order. Memory for a group belongs to a pool of the group.
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
  bool has_allocation(void* address); // overrides since PyTorch 2.14
  c10::DeviceType supported_device_type() override;
  std::string name() override;

  // Makes a handle of a range of symmem's memory, whichever function has allocated it. Collective
  // over the group.
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
    std::string group; // of alloc, or empty
    std::map<uint64_t, c10::intrusive_ptr<Handle>> handles; // by symmem's handle of the group
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
  std::map<uint64_t, int> pools_; // of groups, by handle; guarded by mutex_
};

} // namespace symmem_c10d
