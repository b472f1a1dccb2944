// The backend of torch.distributed, a c10d::Backend that wraps symmem groups.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/StreamGuard.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "elements.hpp"
#include "library.hpp"
#include "queue.hpp"
#include "tensors.hpp"
#include "work.hpp"

namespace symmem_c10d {

using Tensors = std::vector<at::Tensor>;
using WorkPointer = c10::intrusive_ptr<c10d::Work>;

// Calls makes the library calls of an operation on one stream.
class Calls {
 public:
  Calls(const Library& library, uint64_t group, uint64_t stream, bool wait)
      : library_(library), group_(group), stream_(stream), wait_(wait) {}

  // Fills in the size, group, stream and flags of a call, and makes it.
  void call(struct symmem_call call) const;

  void collective(int operation, Elements elements, int op, int root, const void* send, void* recv)
      const;
  // Makes several calls at once, which may run in any order. The list must not be empty.
  void together(std::vector<struct symmem_call> calls) const;
  // Gather or reduce parts whose sizes may differ.
  void all_gather_v(const void* send, const Pieces& recv) const;
  void reduce_scatter_v(const Pieces& send, int op, void* recv) const;
  void all_to_all_v(const Pieces& send, const Pieces& recv) const;

  // Returns whether an address is in memory of symmem. All parts of a call's input or output must
  // then lie in one buffer of symmem.
  bool in_pool(const void* address) const {
    size_t length = 0;
    return library_.locate(address, 0, nullptr, &length) != SYMMEM_ERR_FOREIGN;
  }

  // Returns whether parts, of which this rank has one, are passed to all_gather_v or
  // reduce_scatter_v. These use separate tensors without copies, but no windows. The result depends
  // on sizes only, and is therefore the same on all ranks.
  bool is_uneven(const Tensors& parts, const at::Tensor& own) const;

  // Returns the pieces of the inputs and outputs of a call if the library can use them without
  // copies: lists are outside symmem's memory, and the range from the first input to the last does
  // not overlap the range of the outputs.
  std::optional<std::pair<Pieces, Pieces>> in_place(const Tensors& inputs, const Tensors& outputs)
      const;

 private:
  const Library& library_;
  const uint64_t group_, stream_;
  const bool wait_; // whether calls wait until the stream is idle
  // Lets operations write parameters and inference tensors in any mode of the thread.
  const at::AutoDispatchBelowADInplaceOrView below_autograd_;
};

// Membership describes an open symmem group.
struct Membership {
  uint64_t handle = 0; // 0 if no group is open
  uint64_t world = 0;
  std::vector<int32_t> members; // world ranks
  int pool = -1; // for allocateTensor; -1 to open one on first use
};

// Parts holds the symmem groups of a process group. At least one is open.
struct Parts {
  std::string name; // the prefix for names of groups split from this one
  Membership host; // for tensors on the CPU
  Membership device; // for tensors on GPUs
};

// Group is a process group. It is safe for concurrent use.
//
// Synchronous operations of CPU tensors run on the caller's thread, and asynchronous ones on the
// thread of a queue. Operations of device tensors are queued on streams of the device.
class Group final : public c10d::Backend {
 public:
  Group(
      std::shared_ptr<const Library> library,
      c10::intrusive_ptr<c10d::Store> store,
      int rank,
      int size,
      Parts parts,
      std::chrono::milliseconds timeout);
  ~Group() override;

  const std::string getBackendName() const override;
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override;
  bool supportsSplitting() const override;
  c10::intrusive_ptr<c10d::Backend> split(
      const c10::intrusive_ptr<c10d::Store>& store,
      const std::vector<int>& ranks,
      const c10::intrusive_ptr<c10d::Backend::Options>& options) override;
  void setTimeout(std::chrono::milliseconds timeout) override;
  bool supportsCoalescing() const override;
  void startCoalescing() override;
  WorkPointer endCoalescing() override;
  void setSequenceNumberForGroup() override;
  uint64_t getSequenceNumberForGroup() override;
  c10d::ErrorType getError() override;
  void abort() override;
  void shutdown() override;
  bool supportsTensorAlloc(c10::DeviceIndex device) override;
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;

  WorkPointer broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPointer allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPointer allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPointer allreduce_coalesced(
      Tensors& tensors,
      const c10d::AllreduceCoalescedOptions& options) override;
  WorkPointer reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPointer allgather(
      std::vector<Tensors>& outputs,
      Tensors& inputs,
      const c10d::AllgatherOptions& options) override;
  WorkPointer _allgather_base(
      at::Tensor& output,
      at::Tensor& input,
      const c10d::AllgatherOptions& options) override;
  WorkPointer allgather_coalesced(
      std::vector<Tensors>& outputs,
      Tensors& inputs,
      const c10d::AllgatherOptions& options) override;
  WorkPointer allgather_into_tensor_coalesced(
      Tensors& outputs,
      Tensors& inputs,
      const c10d::AllgatherOptions& options) override;
  WorkPointer gather(
      std::vector<Tensors>& outputs,
      Tensors& inputs,
      const c10d::GatherOptions& options) override;
  WorkPointer scatter(
      Tensors& outputs,
      std::vector<Tensors>& inputs,
      const c10d::ScatterOptions& options) override;
  WorkPointer reduce_scatter(
      Tensors& outputs,
      std::vector<Tensors>& inputs,
      const c10d::ReduceScatterOptions& options) override;
  WorkPointer _reduce_scatter_base(
      at::Tensor& output,
      at::Tensor& input,
      const c10d::ReduceScatterOptions& options) override;
  WorkPointer reduce_scatter_tensor_coalesced(
      Tensors& outputs,
      Tensors& inputs,
      const c10d::ReduceScatterOptions& options) override;
  WorkPointer alltoall_base(
      at::Tensor& output,
      at::Tensor& input,
      std::vector<int64_t>& output_splits,
      std::vector<int64_t>& input_splits,
      const c10d::AllToAllOptions& options) override;
  WorkPointer alltoall(
      Tensors& outputs,
      Tensors& inputs,
      const c10d::AllToAllOptions& options) override;
  WorkPointer send(Tensors& tensors, int destination, int tag) override;
  WorkPointer recv(Tensors& tensors, int source, int tag) override;
  WorkPointer recvAnysource(Tensors& tensors, int tag) override;
  WorkPointer barrier(const c10d::BarrierOptions& options) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool all) override;
#ifdef C10D_BACKEND_HAS_WINDOW // PyTorch 2.14
  WorkPointer gather_single(
      at::Tensor& output,
      at::Tensor& input,
      const c10d::GatherOptions& options) override;
#endif

 private:
  // Operation describes an operation for its work and for the profiler.
  struct Operation {
    c10d::OpType type;
    const char* title;
    bool async;
  };

  // Runs `body`, which makes an operation's calls, or adds it to the queue. Returns null for a
  // synchronous operation.
  template <typename Body>
  WorkPointer start(const Operation& operation, Tensors inputs, Tensors outputs, Body body);
  template <typename Body>
  WorkPointer queue(const Operation& operation, Tensors inputs, Tensors outputs, Body body);
  template <typename Body>
  WorkPointer launch(
      const Operation& operation,
      c10::Device device,
      Tensors inputs,
      Tensors outputs,
      Body body);

  // Runs `body` on this thread.
  template <typename Body>
  void run(Body body);

  // Returns the group for tensors on a device. Throws a NotImplementedError if none is open.
  uint64_t handle(c10::Device device) const;
  Membership split_part(
      const Membership& part,
      const std::string& name,
      const std::vector<int>& ranks,
      std::chrono::milliseconds timeout) const;
  WorkPointer message(c10d::OpType type, const char* title, Tensors& tensors, int peer, int tag);
  WorkPointer returned(WorkPointer work);
  c10::Stream side_stream(c10::Device device);
  int pool(c10::Device device);
  void end_if_interrupted();
  void close();

  const std::shared_ptr<const Library> library_;
  const c10::intrusive_ptr<c10d::Store> store_;
  const c10::intrusive_ptr<c10d::Backend::Options> options_;
  const Parts parts_;
  const std::vector<uint64_t> handles_; // of the parts that are open
  const uint64_t stream_; // for operations of CPU tensors
  std::atomic<bool> is_closed_{false};
  std::atomic<uint64_t> sequence_{0};
  std::atomic<bool> allocated_{false}; // whether allocateTensor has allocated a tensor
  std::atomic<uint64_t> barriers_{0}; // the number of monitored barriers
  const std::shared_ptr<Messages> messages_;
  std::mutex mutex_;
  std::unordered_map<c10::Device, c10::Stream> side_streams_; // guarded by mutex_
  std::map<c10::DeviceType, int> pools_; // for allocateTensor; guarded by mutex_
  std::map<std::vector<int>, int> splits_; // number of splits by ranks; guarded by mutex_
  Queue queue_;
};

} // namespace symmem_c10d
