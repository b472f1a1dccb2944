#include "symmetric.hpp"

#include <thread>
#include <utility>

#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "tensors.hpp"

namespace symmem_c10d {
namespace {

namespace symmetric = c10d::symmetric_memory;

// The size of the barrier rows behind each signal pad: see python/src/symmem/_device/queued.py.
constexpr size_t kBarrierBytes = 256 * 144;

constexpr uint64_t kHostStream = uint64_t{1} << 62; // for tensors on the CPU

// Returns the current stream of a device as the number that symmem.h uses.
uint64_t stream_of(c10::Device device) {
  if (device.is_cpu()) {
    return kHostStream;
  }
  require_device(device);
  const auto stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  return reinterpret_cast<uint64_t>(stream.native_handle());
}

// Queues a barrier on the current stream, and waits for it if `wait` is set.
void queue_barrier(const Library& library, const Members& members, c10::Device device, bool wait) {
  struct symmem_call call{};
  call.size = sizeof(call);
  call.group = members.handle;
  call.stream = stream_of(device);
  call.operation = SYMMEM_BARRIER;
  call.flags = wait ? SYMMEM_CALL_WAIT : 0;
  library.check(library.call(&call));
}

// Rounds up to the alignment of barrier rows.
size_t aligned(size_t bytes) {
  return (bytes + 255) / 256 * 256;
}

at::Tensor on_device(const std::vector<void*>& one, const std::vector<void*>& two, c10::Device to) {
  std::vector<int64_t> addresses;
  for (const auto* list : {&one, &two}) {
    for (void* address : *list) {
      addresses.push_back(reinterpret_cast<int64_t>(address));
    }
  }
  return at::tensor(addresses, at::kLong).to(to);
}

} // namespace

Handle::Handle(
    std::shared_ptr<const Library> library,
    Members members,
    c10::Device device,
    Range buffer,
    size_t offset,
    Range pad)
    : library_(std::move(library)),
      members_(members),
      device_(device),
      buffer_(std::move(buffer)),
      pad_(std::move(pad)),
      offset_(offset),
      addresses_(on_device(buffer_.peers, pad_.peers, device)) {}

Handle::~Handle() {
  if (!symmetric::is_finalizing()) {
    library_->free(pad_.own);
  }
}

std::vector<void*> Handle::get_buffer_ptrs() {
  return buffer_.peers;
}

std::vector<void*> Handle::get_signal_pad_ptrs() {
  return pad_.peers;
}

void** Handle::get_buffer_ptrs_dev() {
  return static_cast<void**>(addresses_.mutable_data_ptr());
}

void** Handle::get_signal_pad_ptrs_dev() {
  return get_buffer_ptrs_dev() + members_.size;
}

size_t Handle::pad_bytes() const {
  return pad_.bytes;
}

size_t Handle::barrier_offset() const {
  return aligned(pad_.bytes);
}

at::Tensor Handle::pad(
    int rank,
    std::vector<int64_t> sizes,
    c10::ScalarType dtype,
    int64_t offset) const {
  const auto words = static_cast<int64_t>(pad_.bytes / c10::elementSize(dtype));
  if (sizes.empty()) {
    sizes.push_back(words);
  }
  TORCH_CHECK_VALUE(
      rank >= 0 && rank < members_.size, "invalid rank ", rank, ": the group has ",
      members_.size, " ranks");
  TORCH_CHECK_VALUE(
      offset >= 0 && c10::multiply_integers(sizes) <= words - offset, "a tensor of shape ",
      c10::IntArrayRef(sizes), " at offset ", offset, " exceeds the signal pad of ", words, " elements");
  auto* const address = static_cast<char*>(pad_.peers[rank]) + offset * c10::elementSize(dtype);
  const auto options = at::TensorOptions().dtype(dtype).device(device_);
  return at::for_blob(address, sizes).options(options).target_device(device_).make_tensor();
}

size_t Handle::get_buffer_size() {
  return buffer_.bytes;
}

size_t Handle::get_offset() {
  return offset_;
}

bool Handle::has_multicast_support() {
  return false;
}

void* Handle::get_multicast_ptr() {
  return nullptr;
}

void Handle::barrier(int channel, size_t) {
  TORCH_CHECK_VALUE(channel >= 0, "the channel of a barrier must not be negative: ", channel);
  queue_barrier(*library_, members_, device_, device_.is_cpu());
}

void Handle::put_signal(int destination, int channel, size_t timeout_ms) {
  exchange(word(destination, channel, members_.rank), 0, 1, destination, timeout_ms);
}

void Handle::wait_signal(int source, int channel, size_t timeout_ms) {
  exchange(word(members_.rank, channel, source), 1, 0, source, timeout_ms);
}

uint32_t* Handle::word(int pad, int channel, int from) const {
  const auto words = pad_.bytes / sizeof(uint32_t);
  const auto channels = static_cast<int>(words / members_.size);
  TORCH_CHECK_VALUE(
      pad >= 0 && pad < members_.size && from >= 0 && from < members_.size,
      "invalid signal from rank ", from, " to rank ", pad, ": the group has ", members_.size,
      " ranks");
  TORCH_CHECK_VALUE(
      channel >= 0 && channel < channels, "invalid channel ", channel, ": the signal pad has ",
      channels, " channels");
  return static_cast<uint32_t*>(pad_.peers[pad]) + members_.size * channel + from;
}

void Handle::exchange(uint32_t* word, uint32_t from, uint32_t to, int rank, size_t timeout_ms)
    const {
  using Clock = std::chrono::steady_clock;
  const auto limit =
      timeout_ms == 0 ? members_.timeout : std::chrono::milliseconds(timeout_ms);
  const auto end = Clock::now() + limit;
  library_->check(library_->group_error(members_.handle)); // a closed group's pads are unmapped
  auto poll = Clock::now();
  for (int n = 0; !changed(word, from, to); ++n) {
    if (n < 1000 && device_.is_cpu()) {
      continue;
    }
    std::this_thread::yield();
    const auto now = Clock::now();
    if (now >= end) {
      C10_THROW_ERROR(
          DistBackendError,
          c10::str(
              "Timed out: rank ", rank, " of the group has not ",
              to == 0 ? "sent the signal" : "received the previous signal", " within ",
              limit.count(), " ms"));
    }
    if (now >= poll) {
      library_->check(library_->group_error(members_.handle));
      library_->check_signals();
      poll = now + std::chrono::milliseconds(100);
    }
  }
}

// Sets a signal word to `to` if its value is `from`, and returns whether it did. Because only this
// rank makes this change, a read followed by a write on the current stream is sufficient on GPUs.
bool Handle::changed(uint32_t* word, uint32_t from, uint32_t to) const {
  if (device_.is_cpu()) {
    return __atomic_compare_exchange_n(
        word, &from, to, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
  }
  const auto options = at::TensorOptions().dtype(at::kInt).device(device_);
  auto view = at::for_blob(word, {1}).target_device(device_).options(options).make_tensor();
  if (view.item<int>() != static_cast<int>(from)) {
    return false;
  }
  view.fill_(static_cast<int>(to));
  return true;
}

int Handle::get_rank() {
  return members_.rank;
}

int Handle::get_world_size() {
  return members_.size;
}

c10::Device Handle::get_device() {
  return device_;
}

bool Handle::world_within_direct_access() {
  return true;
}

void* Allocator::alloc(size_t size, int device, const std::optional<std::string>& group) {
  const auto name = group.value_or("");
  const c10::Device place(type_, type_ == c10::kCPU ? -1 : static_cast<c10::DeviceIndex>(device));
  const int from = pool(name);
  void* address = nullptr;
  const auto bytes = std::max<size_t>(size, 1);
  library_->check(library_->alloc_on(from, bytes, place.index(), stream_of(place), &address));
  Block block{bytes, place, from, name, {}};
  std::lock_guard<std::mutex> lock(mutex_);
  // The handles of a block of an earlier world free their pads after the lock is released.
  const auto [found, added] = blocks_.try_emplace(static_cast<char*>(address), block);
  if (!added) {
    std::swap(found->second, block);
  }
  return address;
}

void Allocator::free(void* address) {
  Block freed{0, c10::kCPU, -1, "", {}}; // Its handles free their pads without the lock.
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = blocks_.find(static_cast<char*>(address));
    if (found == blocks_.end()) {
      return;
    }
    freed = std::move(found->second);
    blocks_.erase(found);
  }
  library_->free(address);
}

size_t Allocator::get_alloc_size(void* address) {
  std::lock_guard<std::mutex> lock(mutex_);
  return find(address)->second.bytes;
}

bool Allocator::has_allocation(void* address) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = blocks_.upper_bound(static_cast<char*>(address));
  return found != blocks_.begin() &&
      static_cast<char*>(address) < std::prev(found)->first + std::prev(found)->second.bytes;
}

// Returns the block that contains an address. The caller holds mutex_.
Allocator::Blocks::iterator Allocator::find(void* address) {
  auto found = blocks_.upper_bound(static_cast<char*>(address));
  TORCH_CHECK_VALUE(
      found != blocks_.begin() &&
          static_cast<char*>(address) < std::prev(found)->first + std::prev(found)->second.bytes,
      "memory at ", address, " was not allocated by SYMMEM; allocate it with symm_mem.empty");
  return std::prev(found);
}

c10::intrusive_ptr<symmetric::SymmetricMemory> Allocator::rendezvous(
    void* address,
    const std::optional<std::string>& group) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto found = find(address);
  auto* base = found->first;
  const auto& block = found->second;
  const auto name = group.value_or(block.group);
  TORCH_CHECK_VALUE(
      !name.empty(), "rendezvous needs a group; pass one to rendezvous or to the allocation");
  const auto offset = static_cast<size_t>(static_cast<char*>(address) - base);
  const auto bytes = block.bytes;
  const auto device = block.device;
  const auto from = block.pool;
  lock.unlock();
  // PyTorch reuses a group's name after destroy_process_group, but symmem's handle is never reused.
  const auto members = this->members(name);
  if (auto known = this->known(base, offset, members.handle)) {
    return known;
  }
  auto buffer = shared(members, from, base, bytes, device);
  auto pad = allocate_pad(members, device);
  auto handle = c10::make_intrusive<Handle>(
      library_, members, device, std::move(buffer), offset, std::move(pad));
  lock.lock();
  const auto again = blocks_.find(base);
  if (again != blocks_.end()) {
    again->second.handles.insert_or_assign(members.handle, handle);
  }
  return handle;
}

// Returns the handle that rendezvous created earlier for a block, an offset and a group, or null.
c10::intrusive_ptr<Handle> Allocator::known(char* base, size_t offset, uint64_t group) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto block = blocks_.find(base);
  if (block == blocks_.end()) {
    return {};
  }
  const auto made = block->second.handles.find(group);
  const bool same = made != block->second.handles.end() && made->second->get_offset() == offset;
  return same ? made->second : c10::intrusive_ptr<Handle>();
}

c10::intrusive_ptr<Handle> Allocator::handle(
    void* address,
    size_t bytes,
    int pool,
    c10::Device device,
    const Members& members) {
  auto buffer = shared(members, pool, address, bytes, device);
  auto pad = allocate_pad(members, device);
  return c10::make_intrusive<Handle>(
      library_, members, device, std::move(buffer), 0, std::move(pad));
}

// Registers memory with a group, and returns its addresses. Collective over the group.
Range Allocator::shared(
    const Members& members,
    int pool,
    void* address,
    size_t bytes,
    c10::Device device) const {
  library_->check(library_->register_pending(members.handle, pool, stream_of(device)));
  std::vector<uint64_t> peers(members.size);
  library_->check(
      library_->peer_addresses(members.handle, bytes, address, peers.size(), peers.data()));
  Range range{bytes, address, {}};
  for (const auto peer : peers) {
    range.peers.push_back(reinterpret_cast<void*>(peer));
  }
  return range;
}

// Allocates a signal pad. When the function returns, the pads of all ranks are filled with zeros.
// Collective over the group.
Range Allocator::allocate_pad(const Members& members, c10::Device device) {
  const auto pad_bytes = symmetric::get_signal_pad_size();
  const auto bytes = aligned(pad_bytes) + kBarrierBytes;
  const auto from = group_pool(members.handle);
  void* address = nullptr;
  library_->check(library_->alloc_on(from, bytes, device.index(), stream_of(device), &address));
  auto pad = shared(members, from, address, bytes, device);
  const auto options = at::TensorOptions().dtype(at::kByte).device(device);
  at::from_blob(address, {static_cast<int64_t>(bytes)}, options).zero_();
  queue_barrier(*library_, members, device, true);
  pad.bytes = pad_bytes;
  return pad;
}

Members Allocator::members(const std::string& group) const {
  const auto found = c10d::resolve_process_group(group);
  char text[2048] = "";
  const auto handle = world_.group(group.c_str(), sizeof(text), text);
  if (handle == 0) {
    C10_THROW_ERROR(DistBackendError, c10::str("symmem: group ", group, ": ", text));
  }
  const auto options = found->getBackend(type_)->getBackendOptions();
  return {handle, found->getRank(), found->getSize(), options->timeout};
}

// Returns the pool of the named group, or of the main world if the name is empty.
int Allocator::pool(const std::string& group) {
  if (group.empty()) {
    const int main = world_.pool();
    TORCH_CHECK(
        main >= 0,
        "symmem is not initialized; call symmem.init or init_process_group(\"symmem\")");
    return main;
  }
  return group_pool(members(group).handle);
}

// Returns the pool whose domain is a group. The first call opens it.
int Allocator::group_pool(uint64_t group) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = pools_.find(group);
    if (found != pools_.end()) {
      return found->second;
    }
  }
  int opened = -1;
  library_->check(library_->pool_open(group, 0, "", &opened));
  std::lock_guard<std::mutex> lock(mutex_);
  return pools_.emplace(group, opened).first->second;
}

bool Allocator::has_multicast_support(int) {
  return false;
}

c10::DeviceType Allocator::supported_device_type() {
  return type_;
}

std::string Allocator::name() {
  return "SYMMEM";
}

} // namespace symmem_c10d
