// Messages and barriers.
#include <thread>

#include "start.hpp"
#include "tensors.hpp"

namespace symmem_c10d {

using c10d::OpType;

WorkPointer Group::send(Tensors& tensors, int destination, int tag) {
  return message(OpType::SEND, "symmem:send", tensors, destination, tag);
}

WorkPointer Group::recv(Tensors& tensors, int source, int tag) {
  return message(OpType::RECV, "symmem:recv", tensors, source, tag);
}

WorkPointer Group::recvAnysource(Tensors& tensors, int tag) {
  return message(OpType::RECVANYSOURCE, "symmem:recvAnySource", tensors, SYMMEM_ANY_SOURCE, tag);
}

// Sends or receives a tensor. This calls the library on the caller's thread, because messages are
// matched in the order of the library calls.
WorkPointer Group::message(
    OpType type,
    const char* title,
    Tensors& tensors,
    int peer,
    int tag) {
  ++sequence_;
  const auto& tensor = only(tensors);
  TORCH_CHECK_VALUE(
      type == OpType::SEND || tensor.is_contiguous(),
      "the tensor is not contiguous, but recv needs a contiguous one");
  const auto flat = tensor.contiguous();
  const auto [kind, count] = moved(flat);
  auto source = std::make_shared<int32_t>(peer);
  struct symmem_call call{};
  call.size = sizeof(call);
  call.group = handle(flat.device());
  call.operation = type == OpType::SEND ? SYMMEM_SEND : SYMMEM_RECV;
  call.type = kind;
  call.count = count;
  call.root = peer;
  call.tag = tag;
  if (type == OpType::SEND) {
    call.send = flat.const_data_ptr();
  } else {
    call.recv = flat.mutable_data_ptr();
    call.from = source.get();
  }
  if (flat.device().is_cpu()) {
    Message message{messages_->take(), 0, flat, source};
    call.stream = message.stream;
    call.event = &message.event;
    library_->check(library_->call(&call));
    return returned(c10::make_intrusive<MessageWork>(
        getRank(), type, title, messages_, std::move(message)));
  }
  const auto side = side_stream(flat.device());
  c10::Event ready(flat.device().type());
  ready.record(c10::impl::VirtualGuardImpl(flat.device().type()).getStream(flat.device()));
  ready.block(side);
  const c10::StreamGuard guard(side);
  call.stream = reinterpret_cast<uint64_t>(side.native_handle());
  library_->check(library_->call(&call));
  return returned(c10::make_intrusive<DeviceWork>(
      getRank(), type, title, flat.device(), Tensors{flat}, Tensors{flat}));
}

// On a device, the barrier is queued on the current stream. As with NCCL, it also blocks the caller
// unless it is asynchronous.
WorkPointer Group::barrier(const c10d::BarrierOptions& options) {
  ++sequence_;
  const Operation operation{OpType::BARRIER, "symmem:barrier", options.asyncOp};
  const auto body = [](const Calls& calls) {
    calls.collective(SYMMEM_BARRIER, {0, 0}, 0, 0, nullptr, nullptr);
  };
  const bool names_device = options.device && !options.device->is_cpu();
  if (parts_.host.handle == 0 || (names_device && parts_.device.handle != 0)) {
    const auto type = names_device ? options.device->type() : c10::kCUDA;
    const c10::impl::VirtualGuardImpl devices(type);
    auto work = returned(launch(operation, devices.getDevice(), {}, {}, body));
    if (!operation.async) {
      devices.synchronizeStream(devices.getStream(devices.getDevice()));
    }
    return work;
  }
  if (operation.async) {
    return returned(queue(operation, {}, {}, body));
  }
  const Profiled profiled(operation.title, {});
  run(body);
  return nullptr;
}

namespace {

// Meeting implements a monitored barrier with keys in the store, so that a late rank does not make
// the group fail.
class Meeting {
 public:
  Meeting(
      const Library& library,
      c10d::Store& store,
      uint64_t number,
      std::chrono::milliseconds timeout)
      : library_(library),
        store_(store),
        prefix_("symmem/monitored/" + std::to_string(number) + "/"),
        timeout_(timeout),
        deadline_(std::chrono::steady_clock::now() + timeout) {}

  void arrive(int rank) const {
    store_.set(prefix_ + std::to_string(rank), std::vector<uint8_t>{1});
  }

  bool late() const {
    return std::chrono::steady_clock::now() >= deadline_;
  }

  // Waits until a rank has arrived. Returns false if the deadline passes first.
  bool await(int rank) const {
    for (int n = 1; !store_.check({prefix_ + std::to_string(rank)}); ++n) {
      if (late()) {
        return false;
      }
      if (n % 50 == 0) {
        library_.check_signals();
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  }

  template <typename... Words>
  [[noreturn]] void fail(const Words&... words) const {
    C10_THROW_ERROR(
        DistBackendError,
        c10::str(words..., ": no answer within the timeout of ", timeout_.count(), " ms"));
  }

 private:
  const Library& library_;
  c10d::Store& store_;
  const std::string prefix_;
  const std::chrono::milliseconds timeout_;
  const std::chrono::steady_clock::time_point deadline_;
};

} // namespace

// The error messages contain those of gloo, because programs may search for them.
void Group::monitoredBarrier(const c10d::BarrierOptions& options, bool all) {
  const auto unset = options.timeout == c10d::kUnsetTimeout;
  const Meeting meeting(
      *library_, *store_, barriers_++, unset ? options_->timeout : options.timeout);
  if (getRank() != 0) {
    meeting.arrive(getRank());
    if (!meeting.await(0)) {
      meeting.fail(
          "Rank ", getRank(), " successfully reached monitoredBarrier, but received errors while "
          "waiting for send/recv from rank 0, whose error names the late ranks");
    }
    return;
  }
  std::vector<int> missing;
  for (int rank = 1; rank < getSize() && (all || missing.empty()); ++rank) {
    if (!all && meeting.late()) {
      meeting.fail("Rank 0 timed out in monitoredBarrier");
    }
    if (!meeting.await(rank)) {
      missing.push_back(rank);
    }
  }
  if (!missing.empty()) {
    meeting.fail(
        missing.size() == 1 ? "Rank " : "Ranks ", c10::Join(", ", missing),
        " failed to pass monitoredBarrier");
  }
  meeting.arrive(0);
}

} // namespace symmem_c10d
