// The operators with which Python creates the backend. The objects are passed with TorchBind, so
// that the library depends on the version of PyTorch but not on that of Python.
#include <map>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/library.h>

#include "group.hpp"
#include "symmetric.hpp"

namespace symmem_c10d {
namespace {

using ProcessGroupPointer = c10::intrusive_ptr<c10d::ProcessGroup>;

// Converts a list of addresses, in the order of Interpreter's fields.
Interpreter functions(const std::vector<int64_t>& addresses) {
  return {
      reinterpret_cast<void (*)(uint64_t)>(addresses.at(0)),
      reinterpret_cast<int (*)()>(addresses.at(1)),
      reinterpret_cast<void (*)()>(addresses.at(2))};
}

// Returns an open group. `numbers` holds the handles of the group and its world, the number of its
// pool, and the world ranks of its members, as in Membership. An empty list means no group.
Membership membership(const std::vector<int64_t>& numbers) {
  if (numbers.empty()) {
    return {};
  }
  return {
      static_cast<uint64_t>(numbers.at(0)), static_cast<uint64_t>(numbers.at(1)),
      std::vector<int32_t>(numbers.begin() + 3, numbers.end()),
      static_cast<int>(numbers.at(2))};
}

// Returns a process group whose backend is a new Group, with the store and the ranks of `model`.
// `host` and `device` describe its groups for tensors on the CPU and on GPUs (see membership).
// `interpreter` holds the addresses of an Interpreter's functions.
ProcessGroupPointer make(
    const std::string& path,
    const ProcessGroupPointer& model,
    const std::string& name,
    const std::vector<int64_t>& host,
    const std::vector<int64_t>& device,
    int64_t timeout_ms,
    const std::vector<int64_t>& interpreter) {
  const int rank = model->getRank();
  const int size = model->getSize();
  auto group = c10::make_intrusive<Group>(
      std::make_shared<const Library>(path, functions(interpreter)), model->getStore(), rank, size,
      Parts{name, membership(host), membership(device)},
      std::chrono::milliseconds(timeout_ms));
  auto result = c10::make_intrusive<c10d::ProcessGroup>(model->getStore(), rank, size);
  result->setDefaultBackend(c10d::ProcessGroup::BackendType::CUSTOM);
  result->setBackend(c10::kCPU, c10d::ProcessGroup::BackendType::CUSTOM, group);
  return result;
}

// The allocators of the process, by device type. They are never destroyed, because memory may be
// freed while the process exits.
auto& allocators = *new std::map<c10::DeviceType, c10::intrusive_ptr<Allocator>>;

// Creates the allocator of symmetric memory on the CPU or on GPUs. `world` holds the addresses of a
// World's functions.
void make_allocator(
    const std::string& path,
    bool on_gpus,
    const std::vector<int64_t>& interpreter,
    const std::vector<int64_t>& world) {
  const World main{
      reinterpret_cast<int (*)()>(world.at(0)),
      reinterpret_cast<uint64_t (*)(const char*, size_t, char*)>(world.at(1))};
  const auto type = on_gpus ? c10::kCUDA : c10::kCPU;
  allocators[type] = c10::make_intrusive<Allocator>(
      std::make_shared<const Library>(path, functions(interpreter)), main, type);
}

// Makes the backend SYMMEM available to set_backend of torch.distributed._symmetric_memory.
void offer_memory(bool on_gpus) {
  const auto type = on_gpus ? c10::kCUDA : c10::kCPU;
  c10d::symmetric_memory::register_availability("SYMMEM", allocators.at(type));
}

// Creates a handle of a tensor in a symmem pool. Collective over the group.
c10::intrusive_ptr<Handle> make_handle(
    const at::Tensor& tensor,
    int64_t pool,
    int64_t group,
    int64_t rank,
    int64_t size,
    int64_t timeout_ms) {
  const auto& allocator = allocators.at(tensor.device().type());
  const Members members{
      static_cast<uint64_t>(group), static_cast<int>(rank), static_cast<int>(size),
      std::chrono::milliseconds(timeout_ms)};
  return allocator->handle(
      tensor.mutable_data_ptr(), tensor.nbytes(), static_cast<int>(pool), tensor.device(), members);
}

std::vector<int64_t> numbers(const std::vector<void*>& addresses) {
  std::vector<int64_t> found;
  for (void* address : addresses) {
    found.push_back(reinterpret_cast<int64_t>(address));
  }
  return found;
}

using HandlePointer = c10::intrusive_ptr<Handle>;

// Registers the methods of handles.
void define_handle(torch::Library& m) {
  m.class_<Handle>("Handle")
      .def("buffers", [](const HandlePointer& h) { return numbers(h->get_buffer_ptrs()); })
      .def("pads", [](const HandlePointer& h) { return numbers(h->get_signal_pad_ptrs()); })
      .def(
          "arrays",
          [](const HandlePointer& h) {
            return numbers({h->get_buffer_ptrs_dev(), h->get_signal_pad_ptrs_dev()});
          })
      .def("barrier_offset", [](const HandlePointer& h) { return int64_t(h->barrier_offset()); })
      .def("pad_bytes", [](const HandlePointer& h) { return int64_t(h->pad_bytes()); })
      .def(
          "buffer",
          [](const HandlePointer& h, int64_t rank, std::vector<int64_t> sizes, int64_t dtype,
             int64_t offset) {
            return h->get_buffer(
                static_cast<int>(rank), sizes, static_cast<c10::ScalarType>(dtype), offset);
          })
      .def(
          "pad",
          [](const HandlePointer& h, int64_t rank, std::vector<int64_t> sizes, int64_t dtype,
             int64_t offset) {
            return h->pad(
                static_cast<int>(rank), std::move(sizes), static_cast<c10::ScalarType>(dtype),
                offset);
          })
      .def("barrier", [](const HandlePointer& h, int64_t channel) { h->barrier(channel, 0); })
      .def(
          "put_signal",
          [](const HandlePointer& h, int64_t rank, int64_t channel, int64_t timeout_ms) {
            h->put_signal(rank, channel, timeout_ms);
          })
      .def("wait_signal", [](const HandlePointer& h, int64_t rank, int64_t channel, int64_t timeout_ms) {
        h->wait_signal(rank, channel, timeout_ms);
      });
}

} // namespace

TORCH_LIBRARY(symmem_c10d, m) {
  m.def(
      "make(str path, __torch__.torch.classes.c10d.ProcessGroup model, str name, int[] host, "
      "int[] device, int timeout_ms, int[] interpreter) "
      "-> __torch__.torch.classes.c10d.ProcessGroup",
      make);
  define_handle(m);
  m.def(
      "make_allocator(str path, bool on_gpus, int[] interpreter, int[] world) -> ()",
      make_allocator);
  m.def("offer_memory(bool on_gpus) -> ()", offer_memory);
  m.def(
      "make_handle(Tensor tensor, int pool, int group, int rank, int size, int timeout_ms) "
      "-> __torch__.torch.classes.symmem_c10d.Handle",
      make_handle);
  m.def("last_failure() -> str", last_failure);
}

} // namespace symmem_c10d
