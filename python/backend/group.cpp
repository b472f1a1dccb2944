#include "group.hpp"

#include <algorithm>
#include <utility>

#include "start.hpp"

namespace symmem_c10d {
namespace {

// On the CPU, any number names a stream. These numbers differ from those that Python's calls use.
constexpr uint64_t kStreams = uint64_t{1} << 61;
constexpr uint64_t kMessages = uint64_t{3} << 60;

// CoalescedWork is the work of several operations.
class CoalescedWork final : public c10d::Work {
 public:
  CoalescedWork(int rank, std::vector<WorkPointer> works)
      : Work(rank, c10d::OpType::COALESCED), works_(std::move(works)) {}

  bool isCompleted() override {
    return std::all_of(works_.begin(), works_.end(), [](auto& w) { return w->isCompleted(); });
  }

  bool wait(std::chrono::milliseconds timeout) override {
    for (auto& work : works_) {
      work->wait(timeout);
    }
    return true;
  }

  void synchronize() override {
    for (auto& work : works_) {
      work->synchronize();
    }
  }

  std::vector<at::Tensor> result() override {
    std::vector<at::Tensor> all;
    for (auto& work : works_) {
      const auto some = work->result();
      all.insert(all.end(), some.begin(), some.end());
    }
    return all;
  }

  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    c10::List<c10::intrusive_ptr<c10::ivalue::Future>> futures(
        c10::FutureType::create(c10::ListType::ofTensors()));
    for (auto& work : works_) {
      futures.push_back(work->getFuture());
    }
    return c10::collectAll(futures);
  }

 private:
  std::vector<WorkPointer> works_;
};

// The works of this thread's operations between startCoalescing and endCoalescing.
thread_local std::vector<WorkPointer> coalesced;
thread_local bool coalescing = false;

std::vector<uint64_t> open_handles(const Parts& parts) {
  std::vector<uint64_t> handles;
  for (const auto handle : {parts.host.handle, parts.device.handle}) {
    if (handle != 0) {
      handles.push_back(handle);
    }
  }
  return handles;
}

} // namespace

void Calls::call(struct symmem_call call) const {
  call.size = sizeof(call);
  call.group = group_;
  call.stream = stream_;
  call.flags = wait_ ? SYMMEM_CALL_WAIT : 0;
  library_.check(library_.call(&call));
}

void Calls::collective(
    int operation,
    Elements elements,
    int op,
    int root,
    const void* send,
    void* recv) const {
  struct symmem_call arguments{};
  arguments.operation = operation;
  arguments.type = elements.type;
  arguments.count = elements.count;
  arguments.op = op;
  arguments.root = root;
  arguments.send = send;
  arguments.recv = recv;
  call(arguments);
}

void Calls::together(std::vector<struct symmem_call> calls) const {
  for (auto& one : calls) {
    one.size = sizeof(one);
  }
  auto first = calls.front();
  first.more_count = calls.size() - 1;
  first.more = calls.data() + 1;
  call(first);
}

void Calls::all_gather_v(const void* send, const Pieces& recv) const {
  struct symmem_call arguments{};
  arguments.operation = SYMMEM_ALL_GATHER_V;
  arguments.type = recv.type;
  arguments.send = send;
  arguments.recv = recv.base;
  arguments.ranks = recv.counts.size();
  arguments.recv_counts = recv.counts.data();
  arguments.recv_offsets = recv.offsets.empty() ? nullptr : recv.offsets.data();
  call(arguments);
}

void Calls::reduce_scatter_v(const Pieces& send, int op, void* recv) const {
  struct symmem_call arguments{};
  arguments.operation = SYMMEM_REDUCE_SCATTER_V;
  arguments.type = send.type;
  arguments.op = op;
  arguments.send = send.base;
  arguments.recv = recv;
  arguments.ranks = send.counts.size();
  arguments.send_counts = send.counts.data();
  arguments.send_offsets = send.offsets.empty() ? nullptr : send.offsets.data();
  call(arguments);
}

void Calls::all_to_all_v(const Pieces& send, const Pieces& recv) const {
  struct symmem_call arguments{};
  arguments.operation = SYMMEM_ALL_TO_ALL_V;
  arguments.type = send.type;
  arguments.send = send.base;
  arguments.recv = recv.base;
  arguments.ranks = send.counts.size();
  arguments.send_counts = send.counts.data();
  arguments.recv_counts = recv.counts.data();
  arguments.send_offsets = send.offsets.empty() ? nullptr : send.offsets.data();
  arguments.recv_offsets = recv.offsets.empty() ? nullptr : recv.offsets.data();
  call(arguments);
}

bool Calls::is_uneven(const Tensors& parts, const at::Tensor& own) const {
  return !same_size(parts) || is_large(own);
}

std::optional<std::pair<Pieces, Pieces>> Calls::in_place(
    const Tensors& inputs,
    const Tensors& outputs) const {
  auto from = pieces(inputs), to = pieces(outputs);
  if (!from || !to || (inputs.size() > 1 && in_pool(from->base)) ||
      (outputs.size() > 1 && in_pool(to->base))) {
    return std::nullopt;
  }
  const auto* first = static_cast<const char*>(from->base);
  const auto* second = static_cast<const char*>(to->base);
  if (first < second + to->bytes && second < first + from->bytes) {
    return std::nullopt;
  }
  return std::make_pair(std::move(*from), std::move(*to));
}

Group::Group(
    std::shared_ptr<const Library> library,
    c10::intrusive_ptr<c10d::Store> store,
    int rank,
    int size,
    Parts parts,
    std::chrono::milliseconds timeout)
    : Backend(rank, size),
      library_(std::move(library)),
      store_(std::move(store)),
      options_(c10::make_intrusive<c10d::Backend::Options>("symmem", timeout)),
      parts_(std::move(parts)),
      handles_(open_handles(parts_)),
      stream_(kStreams | parts_.host.handle),
      messages_(std::make_shared<Messages>(library_, kMessages | parts_.host.handle << 24)),
      queue_([this] { end_if_interrupted(); }) {
  init();
}

Group::~Group() = default;

const std::string Group::getBackendName() const {
  return "symmem";
}

c10::intrusive_ptr<c10d::Backend::Options> Group::getBackendOptions() {
  return options_;
}

bool Group::supportsSplitting() const {
  return true;
}

c10::intrusive_ptr<c10d::Backend> Group::split(
    const c10::intrusive_ptr<c10d::Store>& store,
    const std::vector<int>& ranks,
    const c10::intrusive_ptr<c10d::Backend::Options>& options) {
  const auto own = std::find(ranks.begin(), ranks.end(), getRank());
  if (own == ranks.end()) {
    return nullptr;
  }
  Parts parts;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    parts.name = c10::str(parts_.name, " split ", splits_[ranks]++, " of ", c10::Join(",", ranks));
  }
  const auto timeout = options == nullptr ? options_->timeout : options->timeout;
  parts.host = split_part(parts_.host, parts.name, ranks, timeout);
  parts.device = split_part(parts_.device, parts.name, ranks, timeout);
  const auto rank = static_cast<int>(own - ranks.begin());
  const auto size = static_cast<int>(ranks.size());
  return c10::make_intrusive<Group>(library_, store, rank, size, std::move(parts), timeout);
}

// Opens a group of the given ranks of a part, if the part is open.
Membership Group::split_part(
    const Membership& part,
    const std::string& name,
    const std::vector<int>& ranks,
    std::chrono::milliseconds timeout) const {
  Membership split;
  if (part.handle == 0) {
    return split;
  }
  split.world = part.world;
  for (const int rank : ranks) {
    split.members.push_back(part.members.at(rank));
  }
  const auto text = "torch.distributed " + name;
  library_->check(library_->world_group_open(
      split.world, text.size(), text.data(), split.members.size(), split.members.data(),
      timeout.count(), &split.handle));
  return split;
}

uint64_t Group::handle(c10::Device device) const {
  if (is_closed_) {
    C10_THROW_ERROR(
        DistBackendError,
        "the symmem process group is closed, because it was destroyed, aborted or shut down");
  }
  const auto handle = device.is_cpu() ? parts_.host.handle : parts_.device.handle;
  TORCH_CHECK_NOT_IMPLEMENTED(
      handle != 0, "this symmem process group does not support tensors on ", device.type(),
      "; pass a backend for them to init_process_group, such as \"cpu:gloo,cuda:symmem\"");
  return handle;
}

void Group::setTimeout(std::chrono::milliseconds timeout) {
  for (const auto handle : handles_) {
    library_->check(library_->group_set_timeout(handle, timeout.count()));
  }
  options_->timeout = timeout;
}

// Batches of messages do not need coalescing. If it were supported, an exception in
// batch_isend_irecv would leave PyTorch's group in a state in which it records collectives but does
// not run them.
bool Group::supportsCoalescing() const {
  return false;
}

void Group::startCoalescing() {
  coalescing = true;
  coalesced.clear(); // After an exception, endCoalescing may not have been called.
}

WorkPointer Group::endCoalescing() {
  coalescing = false;
  return c10::make_intrusive<CoalescedWork>(getRank(), std::exchange(coalesced, {}));
}

// Records the work of an operation if operations are being coalesced, and returns it.
WorkPointer Group::returned(WorkPointer work) {
  if (coalescing && work) {
    coalesced.push_back(work);
  }
  return work;
}

void Group::setSequenceNumberForGroup() {}

uint64_t Group::getSequenceNumberForGroup() {
  return sequence_;
}

c10d::ErrorType Group::getError() {
  int code = SYMMEM_OK;
  for (const auto handle : handles_) {
    code = code == SYMMEM_OK ? library_->group_error(handle) : code;
  }
  switch (code) {
    case SYMMEM_OK:
      return c10d::ErrorType::SUCCESS;
    case SYMMEM_ERR_TIMEOUT:
      return c10d::ErrorType::TIMEOUT;
    case SYMMEM_ERR_RANK_LOST:
      return c10d::ErrorType::REMOTE_ERROR;
    default:
      return c10d::ErrorType::COMM_ERROR;
  }
}

void Group::abort() {
  for (const auto handle : handles_) {
    library_->group_abort(handle);
  }
  queue_.run([] {}); // Wait until all queued operations have failed with the group's error.
  close();
}

void Group::shutdown() {
  queue_.run([] {});
  close();
}

// Throws if a signal handler raises an exception while a collective waits for earlier ones. Because
// the collective will then not run on this rank, the group fails on all ranks.
void Group::end_if_interrupted() {
  try {
    library_->check_signals();
  } catch (...) {
    for (const auto handle : handles_) {
      library_->group_abort(handle);
    }
    throw;
  }
}

void Group::close() {
  if (!is_closed_.exchange(true)) {
    for (const auto handle : handles_) {
      library_->interpreter.closed(handle);
    }
  }
}

c10::Stream Group::side_stream(c10::Device device) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = side_streams_.find(device);
  if (found == side_streams_.end()) {
    const c10::impl::VirtualGuardImpl streams(device.type());
    found = side_streams_.emplace(device, streams.getStreamFromGlobalPool(device, true)).first;
  }
  return found->second;
}

} // namespace symmem_c10d
