// Defines the templates of Group that run operations.
#pragma once

#include <optional>

#include <ATen/record_function.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "group.hpp"
#include "tensors.hpp"

namespace symmem_c10d {

// Profiled records an operation for PyTorch's profiler until it goes out of scope.
class Profiled {
 public:
  Profiled(const char* title, const Tensors& inputs) : record_(at::RecordScope::USER_SCOPE) {
    if (record_.isActive()) {
      record_._setAsync(); // as PyTorch does for works
      const std::vector<c10::IValue> values(inputs.begin(), inputs.end());
      record_.before(title, c10::ArrayRef<const c10::IValue>(values.data(), values.size()));
    }
  }

 private:
  at::RecordFunction record_;
};

template <typename Body>
WorkPointer Group::start(const Operation& operation, Tensors inputs, Tensors outputs, Body body) {
  ++sequence_;
  require_separate(outputs);
  const auto device = (outputs.empty() ? inputs.front() : outputs.front()).device();
  if (!device.is_cpu()) {
    return returned(
        launch(operation, device, std::move(inputs), std::move(outputs), std::move(body)));
  }
  if (operation.async) {
    return returned(queue(operation, std::move(inputs), std::move(outputs), std::move(body)));
  }
  const Profiled profiled(operation.title, inputs);
  run(std::move(body));
  return nullptr;
}

template <typename Body>
void Group::run(Body body) {
  const Calls calls(*library_, handle(c10::kCPU), stream_, true);
  queue_.run([&] { body(calls); });
}

template <typename Body>
WorkPointer Group::queue(const Operation& operation, Tensors inputs, Tensors outputs, Body body) {
  const auto group = handle(c10::kCPU);
  auto work = c10::make_intrusive<QueuedWork>(
      library_, getRank(), operation.type, operation.title, inputs, std::move(outputs),
      allocated_.load());
  auto self = c10::intrusive_ptr<Group>::unsafe_reclaim_from_nonowning(this);
  auto run = [self = std::move(self), group, work,
              body = std::make_optional(std::move(body))]() mutable {
    std::exception_ptr failure;
    try {
      (*body)(Calls(*self->library_, group, self->stream_, true));
    } catch (...) {
      failure = std::current_exception();
    }
    // Drop the tensors now, so that the program and not the end of the work determines when
    // symmetric tensors are freed.
    body.reset();
    work->end(std::move(failure));
  };
  queue_.add(std::move(run), [work] { work->notify(); });
  return work;
}

template <typename Body>
WorkPointer Group::launch(
    const Operation& operation,
    c10::Device device,
    Tensors inputs,
    Tensors outputs,
    Body body) {
  const c10::impl::VirtualGuardImpl streams(device.type());
  const auto current = streams.getStream(device);
  const auto calls = [&](c10::Stream stream) {
    return Calls(
        *library_, handle(device), reinterpret_cast<uint64_t>(stream.native_handle()), false);
  };
  const Profiled profiled(operation.title, inputs);
  if (!operation.async) {
    queue_.run([&] { body(calls(current)); });
    return nullptr;
  }
  const auto side = side_stream(device);
  c10::Event ready(device.type());
  ready.record(current);
  ready.block(side);
  const c10::StreamGuard guard(side);
  queue_.run([&] { body(calls(side)); });
  return c10::make_intrusive<DeviceWork>(
      getRank(), operation.type, nullptr, device, std::move(inputs), std::move(outputs));
}

} // namespace symmem_c10d
