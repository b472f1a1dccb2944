// The Work classes that the backend returns for asynchronous operations.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include <c10/core/Event.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "library.hpp"

namespace symmem_c10d {

// QueuedWork is an operation of CPU tensors that a Queue runs.
class QueuedWork final : public c10d::Work {
 public:
  // If `release` is set, the first wait releases the outputs, so that all ranks free symmetric
  // memory at the same point of the program. Otherwise they are released with the work.
  QueuedWork(
      std::shared_ptr<const Library> library,
      int rank,
      c10d::OpType operation,
      const char* title,
      const std::vector<at::Tensor>& inputs,
      std::vector<at::Tensor> outputs,
      bool release);

  bool wait(std::chrono::milliseconds timeout) override;
  std::vector<at::Tensor> result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

  // Records that the operation has completed or failed with an exception, and wakes waiters.
  void end(std::exception_ptr failure);

  // Completes the future, if there is one, and so runs its callbacks. Call this once, after end.
  void notify();

 private:
  void await_end(std::chrono::milliseconds timeout);
  void complete(c10::ivalue::Future& future, const std::vector<at::Tensor>& outputs) const;

  const std::shared_ptr<const Library> library_;
  const bool release_;
  std::mutex futures_;
  std::vector<at::Tensor> outputs_; // guarded by futures_
  c10::intrusive_ptr<c10::ivalue::Future> future_; // guarded by futures_
  bool notified_ = false; // guarded by futures_
};

// DeviceWork is an operation that was queued on a stream of a device. As with NCCL's works, wait
// makes the current stream wait and does not block the caller.
class DeviceWork final : public c10d::Work {
 public:
  // The operation must be on the device's current stream. The inputs stay allocated until the work
  // is waited for or destroyed.
  DeviceWork(
      int rank,
      c10d::OpType operation,
      const char* title,
      c10::Device device,
      std::vector<at::Tensor> inputs,
      std::vector<at::Tensor> outputs);

  bool isCompleted() override;
  bool isSuccess() const override;
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override;
  std::vector<at::Tensor> result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  const c10::Device device_;
  c10::Event done_;
  std::vector<at::Tensor> inputs_, outputs_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

// Message is a message of a CPU tensor in progress.
struct Message {
  uint64_t stream; // carries only this message
  uint64_t event; // completes after the message; 0 if that is complete
  at::Tensor tensor;
  std::shared_ptr<int32_t> source; // the sender's rank, which the library writes
};

// Messages provides streams for messages, and keeps the tensors of dropped messages alive until the
// messages complete. It is safe for concurrent use.
class Messages {
 public:
  // Streams are numbered from `first`.
  Messages(std::shared_ptr<const Library> library, uint64_t first)
      : library_(std::move(library)), next_(first) {}

  const Library& library() const {
    return *library_;
  }

  // Returns a stream without work.
  uint64_t take();

  // Frees the stream of a completed message.
  void give_back(const Message& message);

  // Keeps a message until it completes.
  void keep(Message message);

 private:
  const std::shared_ptr<const Library> library_;
  std::mutex mutex_;
  std::vector<Message> kept_;
  std::vector<uint64_t> free_;
  uint64_t next_;
};

// MessageWork is a send or receive of a CPU tensor.
class MessageWork final : public c10d::Work {
 public:
  MessageWork(
      int rank,
      c10d::OpType operation,
      const char* title,
      std::shared_ptr<Messages> messages,
      Message message);
  ~MessageWork() override;

  bool isCompleted() override;
  bool wait(std::chrono::milliseconds timeout) override;
  int sourceRank() const override;
  std::vector<at::Tensor> result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  void complete();

  const std::shared_ptr<Messages> messages_;
  Message message_;
  std::mutex completing_;
  std::atomic<bool> over_{false};
};

} // namespace symmem_c10d
