// The operations of two ranks, and barriers.
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

// Sends or receives a tensor. The calls of a rank are matched with those of its peers in the order
// of calls here, so the library is called on this thread.
WorkPointer Group::message(
    OpType type,
    const char* title,
    Tensors& tensors,
    int peer,
    int tag) {
  ++sequence_;
  const auto& tensor = only(tensors);
  TORCH_CHECK_VALUE(
      type == OpType::SEND || tensor.is_contiguous(), "received tensors must be contiguous");
  const auto flat = tensor.contiguous();
  const auto [kind, count] = moved(flat);
  auto source = std::make_shared<int32_t>(peer);
  const auto transfer = [&, kind = kind, count = count](uint64_t stream) {
    library_->check(
        type == OpType::SEND
            ? library_->send(handle_, count, kind, peer, tag, flat.const_data_ptr(), stream)
            : library_->recv(
                  handle_, count, kind, peer, tag, flat.mutable_data_ptr(), source.get(), stream));
  };
  if (flat.device().is_cpu()) {
    Message message{messages_->take(), 0, flat, source};
    transfer(message.stream);
    library_->check(library_->event_record(message.stream, &message.event));
    return returned(c10::make_intrusive<MessageWork>(
        getRank(), type, title, messages_, std::move(message)));
  }
  const auto side = side_stream(flat.device());
  c10::Event ready(flat.device().type());
  ready.record(c10::impl::VirtualGuardImpl(flat.device().type()).getStream(flat.device()));
  ready.block(side);
  const c10::StreamGuard guard(side);
  transfer(reinterpret_cast<uint64_t>(side.native_handle()));
  return returned(c10::make_intrusive<DeviceWork>(
      getRank(), type, title, flat.device(), Tensors{flat}, Tensors{flat}));
}

WorkPointer Group::barrier(const c10d::BarrierOptions& options) {
  ++sequence_;
  const Operation operation{OpType::BARRIER, "symmem:barrier", options.asyncOp};
  const auto body = [](const Calls& calls) { calls.barrier(); };
  if (operation.async) {
    return returned(queue(operation, {}, body));
  }
  Profiled profiled(operation.title);
  queue_.run([&] { body(Calls(*library_, handle_, stream_, true)); });
  return nullptr;
}

// Rank 0 waits for a key of every other rank in the store, and answers. The group stays usable
// after a timeout.
void Group::monitoredBarrier(const c10d::BarrierOptions& options, bool all) {
  const auto unset = options.timeout == c10d::kUnsetTimeout;
  const auto timeout = unset ? options_->timeout : options.timeout;
  const auto begin = std::chrono::steady_clock::now();
  const auto late = [&] { return std::chrono::steady_clock::now() - begin >= timeout; };
  const auto prefix = "symmem/monitored/" + std::to_string(barriers_++) + "/";
  const auto key = [&](int rank) { return prefix + std::to_string(rank); };
  const auto arrived = [&](int rank) {
    while (!store_->check({key(rank)})) {
      if (late()) {
        return false;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  };
  if (getRank() != 0) {
    store_->set(key(getRank()), std::vector<uint8_t>{1});
    const bool answered = arrived(0);
    const bool passed = answered && store_->get(key(0)) == std::vector<uint8_t>{1};
    if (!passed) {
      C10_THROW_ERROR(
          DistBackendError,
          c10::str(
              "Rank ", getRank(), " reached monitoredBarrier, but rank 0 ",
              answered ? "reported other ranks that are late, after a timeout of "
                       : "did not answer: timeout after ",
              timeout.count(), " ms. See the error of rank 0"));
    }
    return;
  }
  std::vector<int> missing;
  for (int rank = 1; rank < getSize() && (all || missing.empty()); ++rank) {
    if (!arrived(rank)) {
      missing.push_back(rank);
    }
  }
  store_->set(key(0), std::vector<uint8_t>{static_cast<uint8_t>(missing.empty() ? 1 : 0)});
  if (!missing.empty()) {
    C10_THROW_ERROR(
        DistBackendError,
        c10::str(
            missing.size() == 1 ? "Rank " : "Ranks ", c10::Join(", ", missing),
            " failed to pass monitoredBarrier: timeout after ", timeout.count(), " ms"));
  }
}

} // namespace symmem_c10d
