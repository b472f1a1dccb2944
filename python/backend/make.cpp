// The operators by which Python makes a backend. TorchBind passes the objects, so the library
// depends on the version of PyTorch and not on that of Python.
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/library.h>

#include "group.hpp"

namespace symmem_c10d {
namespace {

using ProcessGroupPointer = c10::intrusive_ptr<c10d::ProcessGroup>;

// Returns a process group whose backend is a new Group. Its store and its ranks are those of
// `meeting`. `members` are the ranks by their numbers in the world. `pool` is the pool of
// allocateTensor, or -1. `interpreter` has the addresses of an Interpreter's functions.
ProcessGroupPointer make(
    const std::string& path,
    const ProcessGroupPointer& meeting,
    const std::string& name,
    int64_t handle,
    int64_t world,
    const std::vector<int64_t>& members,
    int64_t pool,
    int64_t timeout_ms,
    const std::vector<int64_t>& interpreter) {
  const int rank = meeting->getRank();
  const int size = meeting->getSize();
  Membership membership{
      name, static_cast<uint64_t>(handle), static_cast<uint64_t>(world),
      std::vector<int32_t>(members.begin(), members.end()), static_cast<int>(pool)};
  const Interpreter functions{
      reinterpret_cast<void (*)(uint64_t)>(interpreter.at(0)),
      reinterpret_cast<int (*)()>(interpreter.at(1)),
      reinterpret_cast<void (*)()>(interpreter.at(2))};
  auto group = c10::make_intrusive<Group>(
      std::make_shared<const Library>(path, functions), meeting->getStore(), rank,
      std::move(membership), std::chrono::milliseconds(timeout_ms));
  auto made = c10::make_intrusive<c10d::ProcessGroup>(meeting->getStore(), rank, size);
  made->setBackend(c10::kCPU, c10d::ProcessGroup::BackendType::CUSTOM, group);
  return made;
}

} // namespace

TORCH_LIBRARY(symmem_c10d, m) {
  m.def(
      "make(str path, __torch__.torch.classes.c10d.ProcessGroup meeting, str name, int handle, "
      "int world, int[] members, int pool, int timeout_ms, int[] interpreter) "
      "-> __torch__.torch.classes.c10d.ProcessGroup",
      make);
  m.def("last_failure() -> str", last_failure);
}

} // namespace symmem_c10d
