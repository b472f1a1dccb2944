#include "work.hpp"

#include <algorithm>
#include <thread>
#include <utility>

#include <c10/core/impl/VirtualGuardImpl.h>

#include "queue.hpp"

namespace symmem_c10d {
namespace {

constexpr std::chrono::milliseconds kSignalPeriod(100);

[[noreturn]] void throw_timeout(std::chrono::milliseconds timeout) {
  C10_THROW_ERROR(
      DistBackendError,
      c10::str(
          "Timed out: the operation did not complete within the ", timeout.count(),
          " ms passed to Work.wait and is still running; you can call wait again"));
}

c10::intrusive_ptr<c10::ivalue::Future> tensors_future(std::vector<c10::Device> devices = {}) {
  return c10::make_intrusive<c10::ivalue::Future>(
      c10::ListType::create(c10::TensorType::get()), std::move(devices));
}

} // namespace

QueuedWork::QueuedWork(
    std::shared_ptr<const Library> library,
    int rank,
    c10d::OpType operation,
    const char* title,
    const std::vector<at::Tensor>& inputs,
    std::vector<at::Tensor> outputs,
    bool release)
    : Work(rank, operation, title, inputs),
      library_(std::move(library)),
      release_(release),
      outputs_(std::move(outputs)) {}

// Waits until the operation ends. Handles signals during the wait.
void QueuedWork::await_end(std::chrono::milliseconds timeout) {
  const auto end = std::chrono::steady_clock::now() + timeout;
  auto until = [&] {
    const auto next = std::chrono::steady_clock::now() + kSignalPeriod;
    return timeout == kNoTimeout ? next : std::min(next, end);
  };
  std::unique_lock<std::mutex> lock(mutex_);
  while (!cv_.wait_until(lock, until(), [&] { return completed_; })) {
    lock.unlock();
    if (timeout != kNoTimeout && std::chrono::steady_clock::now() >= end) {
      throw_timeout(timeout);
    }
    library_->check_signals();
    lock.lock();
  }
}

bool QueuedWork::wait(std::chrono::milliseconds timeout) {
  if (!isCompleted()) {
    Queue::yield();
    await_end(timeout);
  }
  Work::wait(kNoTimeout);
  std::vector<at::Tensor> released;
  std::lock_guard<std::mutex> lock(futures_);
  if (release_ && future_ == nullptr) {
    released.swap(outputs_);
  }
  return true;
}

std::vector<at::Tensor> QueuedWork::result() {
  std::lock_guard<std::mutex> lock(futures_);
  return outputs_;
}

c10::intrusive_ptr<c10::ivalue::Future> QueuedWork::getFuture() {
  std::lock_guard<std::mutex> lock(futures_);
  if (future_ == nullptr) {
    future_ = tensors_future();
    if (notified_) {
      complete(*future_, outputs_);
    }
  }
  return future_;
}

void QueuedWork::end(std::exception_ptr failure) {
  finish(std::move(failure));
}

void QueuedWork::notify() {
  std::unique_lock<std::mutex> lock(futures_);
  notified_ = true;
  const auto future = future_;
  if (future != nullptr) {
    const auto outputs = outputs_;
    lock.unlock();
    complete(*future, outputs);
  }
}

void QueuedWork::complete(
    c10::ivalue::Future& future,
    const std::vector<at::Tensor>& outputs) const {
  if (auto failure = exception()) {
    future.setError(std::move(failure));
  } else {
    future.markCompleted(c10::IValue(outputs));
  }
}

DeviceWork::DeviceWork(
    int rank,
    c10d::OpType operation,
    const char* title,
    c10::Device device,
    std::vector<at::Tensor> inputs,
    std::vector<at::Tensor> outputs)
    : Work(rank, operation, title, inputs),
      device_(device),
      done_(device.type()),
      inputs_(std::move(inputs)),
      outputs_(std::move(outputs)),
      future_(tensors_future({device})) {
  done_.record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  future_->markCompleted(c10::IValue(outputs_));
}

bool DeviceWork::isCompleted() {
  return done_.query();
}

bool DeviceWork::isSuccess() const {
  return done_.query();
}

bool DeviceWork::wait(std::chrono::milliseconds timeout) {
  synchronize();
  return true;
}

void DeviceWork::synchronize() {
  done_.block(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  inputs_.clear();
  if (recordFunctionEndCallback_) {
    recordFunctionEndCallback_();
    recordFunctionEndCallback_ = nullptr;
  }
}

std::vector<at::Tensor> DeviceWork::result() {
  return outputs_;
}

c10::intrusive_ptr<c10::ivalue::Future> DeviceWork::getFuture() {
  return future_;
}

uint64_t Messages::take() {
  std::vector<Message> over;
  std::lock_guard<std::mutex> lock(mutex_);
  const auto complete = [&](const Message& m) { return library_->event_done(m.event) != 0; };
  const auto first = std::stable_partition(
      kept_.begin(), kept_.end(), [&](const Message& m) { return !complete(m); });
  for (auto message = first; message != kept_.end(); ++message) {
    library_->event_close(message->event);
    library_->stream_forget(message->stream);
  }
  std::move(first, kept_.end(), std::back_inserter(over));
  kept_.erase(first, kept_.end());
  if (free_.empty()) {
    return next_++;
  }
  const auto stream = free_.back();
  free_.pop_back();
  return stream;
}

void Messages::give_back(const Message& message) {
  if (message.event != 0) {
    library_->event_close(message.event);
  }
  std::lock_guard<std::mutex> lock(mutex_);
  free_.push_back(message.stream);
}

void Messages::keep(Message message) {
  std::lock_guard<std::mutex> lock(mutex_);
  kept_.push_back(std::move(message));
}

MessageWork::MessageWork(
    int rank,
    c10d::OpType operation,
    const char* title,
    std::shared_ptr<Messages> messages,
    Message message)
    : Work(rank, operation, title, std::vector<at::Tensor>{message.tensor}),
      messages_(std::move(messages)),
      message_(std::move(message)) {
  if (message_.event == 0) {
    complete();
  }
}

MessageWork::~MessageWork() {
  if (!over_) {
    messages_->keep(std::move(message_));
  }
}

bool MessageWork::isCompleted() {
  if (!over_ && messages_->library().event_done(message_.event) != 0) {
    complete();
  }
  return over_;
}

bool MessageWork::wait(std::chrono::milliseconds timeout) {
  if (timeout != kNoTimeout && !over_) {
    const auto& library = messages_->library();
    const int code = library.event_wait(message_.event, timeout.count());
    if (code == SYMMEM_ERR_TIMEOUT && library.event_done(message_.event) == 0) {
      throw_timeout(timeout);
    }
    if (code == SYMMEM_ERR_INTERRUPTED) {
      library.check(code);
    }
  }
  complete();
  return Work::wait(kNoTimeout);
}

// Waits for the message, and records its error.
void MessageWork::complete() {
  std::lock_guard<std::mutex> lock(completing_);
  if (over_) {
    return;
  }
  const auto& library = messages_->library();
  const int code = message_.event == 0 ? SYMMEM_OK : library.event_synchronize(message_.event);
  std::exception_ptr failure;
  try {
    library.check(code);
  } catch (...) {
    if (code == SYMMEM_ERR_INTERRUPTED) {
      throw; // The message is still in progress.
    }
    failure = std::current_exception();
  }
  if (!failure) {
    messages_->give_back(message_);
  }
  over_ = true;
  finish(failure);
}

int MessageWork::sourceRank() const {
  return *message_.source;
}

std::vector<at::Tensor> MessageWork::result() {
  return {message_.tensor};
}

c10::intrusive_ptr<c10::ivalue::Future> MessageWork::getFuture() {
  auto future = tensors_future();
  auto self = c10::intrusive_ptr<MessageWork>::unsafe_reclaim_from_nonowning(this);
  std::thread([self = std::move(self), future] {
    try {
      self->wait(kNoTimeout);
      future->markCompleted(c10::IValue(self->result()));
    } catch (...) {
      future->setError(std::current_exception());
    }
  }).detach();
  return future;
}

} // namespace symmem_c10d
