// The operators by which Python makes a backend. TorchBind passes the objects, so the library
// depends on the version of PyTorch and not on that of Python.
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/library.h>

#include "group.hpp"
#include "symmetric.hpp"

namespace symmem_c10d {
namespace {

using ProcessGroupPointer = c10::intrusive_ptr<c10d::ProcessGroup>;

// Returns the functions at the addresses of a list, in the order of Interpreter's fields.
Interpreter functions(const std::vector<int64_t>& addresses) {
  return {
      reinterpret_cast<void (*)(uint64_t)>(addresses.at(0)),
      reinterpret_cast<int (*)()>(addresses.at(1)),
      reinterpret_cast<void (*)()>(addresses.at(2))};
}

// Returns an open group of symmem: `numbers` are the group, its world, and its ranks by their
// numbers in the world. An empty list stands for no group.
Membership membership(const std::vector<int64_t>& numbers) {
  if (numbers.empty()) {
    return {};
  }
  return {
      static_cast<uint64_t>(numbers.at(0)), static_cast<uint64_t>(numbers.at(1)),
      std::vector<int32_t>(numbers.begin() + 2, numbers.end())};
}

// Returns a process group whose backend is a new Group. Its store and its ranks are those of
// `meeting`. `host` and `device` are the arguments of membership, for tensors on the CPU and on
// GPUs. `pool` is the pool of allocateTensor, or -1. `interpreter` has the addresses of an
// Interpreter's functions.
ProcessGroupPointer make(
    const std::string& path,
    const ProcessGroupPointer& meeting,
    const std::string& name,
    const std::vector<int64_t>& host,
    const std::vector<int64_t>& device,
    int64_t pool,
    int64_t timeout_ms,
    const std::vector<int64_t>& interpreter) {
  const int rank = meeting->getRank();
  const int size = meeting->getSize();
  auto group = c10::make_intrusive<Group>(
      std::make_shared<const Library>(path, functions(interpreter)), meeting->getStore(), rank, size,
      Parts{name, membership(host), membership(device)}, static_cast<int>(pool),
      std::chrono::milliseconds(timeout_ms));
  auto made = c10::make_intrusive<c10d::ProcessGroup>(meeting->getStore(), rank, size);
  made->setBackend(c10::kCPU, c10d::ProcessGroup::BackendType::CUSTOM, group);
  return made;
}

// Makes the backend SYMMEM available to set_backend of torch.distributed._symmetric_memory, for
// tensors on the CPU or on GPUs. `world` has the addresses of a World's functions.
void offer_memory(
    const std::string& path,
    bool on_gpus,
    const std::vector<int64_t>& interpreter,
    const std::vector<int64_t>& world) {
  const World main{
      reinterpret_cast<int (*)()>(world.at(0)),
      reinterpret_cast<uint64_t (*)(const char*, size_t, char*)>(world.at(1))};
  c10d::symmetric_memory::register_availability(
      "SYMMEM",
      c10::make_intrusive<Allocator>(
          std::make_shared<const Library>(path, functions(interpreter)), main,
          on_gpus ? c10::kCUDA : c10::kCPU));
}

} // namespace

TORCH_LIBRARY(symmem_c10d, m) {
  m.def(
      "make(str path, __torch__.torch.classes.c10d.ProcessGroup meeting, str name, int[] host, "
      "int[] device, int pool, int timeout_ms, int[] interpreter) "
      "-> __torch__.torch.classes.c10d.ProcessGroup",
      make);
  m.def("offer_memory(str path, bool on_gpus, int[] interpreter, int[] world) -> ()", offer_memory);
  m.def("last_failure() -> str", last_failure);
}

} // namespace symmem_c10d
