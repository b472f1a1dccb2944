"""Runs SGLang's own files with symmem's library: sglang_files.py CHECKOUT.

Loads pynccl_wrapper.py, pynccl.py and pynccl_allocator.py from the checkout, with stubs for what
they import. Only the library that the allocator would compile is replaced by symmem's. symmem
contains no SGLang code.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path
from typing import Any

import common
import torch
import torch.distributed as dist
from common import DEVICE, MIB, RANK, SIZE, SUM, attempt, is_symmetric_kernel, kernels, verdict
from torch.utils import cpp_extension

from symmem._c import library

FILES = "python/sglang/srt/distributed"


class Anything(types.ModuleType):
    """A module in which every name has a harmless value."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Value()


class Value:
    """The value of a stub: callable, with any attribute, and false."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Return a new Value."""
        return Value()

    def __getattr__(self, name: str) -> Any:
        return Value()

    def get(self) -> Any:
        """Represent an environment variable that is not set."""
        return None

    def __bool__(self) -> bool:
        return False


def stub(name: str, **contents: Any) -> None:
    """Install a stub for a module and for its parents."""
    parts = name.split(".")
    for n in range(1, len(parts) + 1):
        path = ".".join(parts[:n])
        if path not in sys.modules:
            module = Anything(path)
            module.__path__ = []
            sys.modules[path] = module
    for key, value in contents.items():
        setattr(sys.modules[name], key, value)


def load(name: str, path: Path) -> Any:
    """Load a file as a module."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


class Coordinator:
    """Fakes the parts of a group that SGLang's allocator uses."""

    def __init__(self, communicator: Any):
        self.pynccl_comm = communicator
        self.world_size = SIZE
        self.unique_name = "tp"
        self.is_first_rank = RANK == 0


def enabled() -> Any:
    """Replace SGLang's context; the feature is enabled."""
    comm = types.SimpleNamespace(enable_symm_mem=True)
    return types.SimpleNamespace(comm=comm)


def prepare(checkout: Path) -> tuple[Any, Any]:
    """Load SGLang's three files."""
    base = "sglang.srt"
    release = tuple(int(p) for p in torch.__version__.split("+")[0].split(".")[:2])
    stub(f"{base}.environ", envs=Value())
    stub(f"{base}.runtime_context", get_exec=enabled)
    stub(
        f"{base}.utils.common",
        torch_release=release,
        get_current_device_stream_fast=torch.cuda.current_stream,
    )
    stub(f"{base}.distributed.parallel_state", GroupCoordinator=Coordinator)
    folder = checkout / FILES
    load(f"{base}.distributed.utils", folder / "utils.py")
    devices = f"{base}.distributed.device_communicators"
    stub(devices)
    load(f"{devices}.pynccl_wrapper", folder / "device_communicators/pynccl_wrapper.py")
    pynccl = load(f"{devices}.pynccl", folder / "device_communicators/pynccl.py")
    allocator = load(
        f"{devices}.pynccl_allocator", folder / "device_communicators/pynccl_allocator.py"
    )
    return pynccl, allocator


def instead(*_: Any, name: str, build_directory: str, **__: Any) -> str:
    """Replace load_inline: put symmem's library where SGLang expects the one that it compiles.

    All ranks do so in one folder at the same time.
    """
    target = Path(build_directory) / f"{name}.so"
    own = target.with_suffix(f".{RANK}")
    own.unlink(missing_ok=True)
    own.symlink_to(library.where().resolve())
    own.replace(target)
    return str(target)


def run(checkout: Path) -> None:
    """Reduce tensors from SGLang's pool with two communicators."""
    cpp_extension.load_inline = instead
    pynccl, allocator = prepare(checkout)
    gloo = dist.new_group(backend="gloo")
    groups = [Coordinator(pynccl.PyNcclCommunicator(group=gloo, device=DEVICE)) for _ in range(2)]
    right = []
    for group in groups:
        for size in (MIB, 24 * MIB, MIB):
            with allocator.SymmetricMemoryContext(group):
                x = torch.full((size // 4,), RANK + 1.0, device=DEVICE)
            with group.pynccl_comm.change_state(enable=True):
                group.pynccl_comm.all_reduce(x)
            torch.cuda.synchronize()
            right.append(bool((x == SUM).all()))
            del x
    verdict("SGLang's files on our library", all(right), f"{sum(right)} of {len(right)} right")
    raw = library.library().raw
    again = [
        raw.nccl_allocator_register_segments_with_comm(g.pynccl_comm.comm.value) for g in groups
    ]
    verdict("two communicators have everything", again == [0, 0], again)
    for number, group in enumerate(groups):
        # A library that registers nothing returns the same codes, but does not run the same
        # kernels.
        names = symmetric_sum(allocator, group)
        verdict(f"communicator {number} runs a symmetric kernel", is_symmetric_kernel(names), names)


def symmetric_sum(allocator: Any, group: Coordinator) -> list[str]:
    """Return the kernels of an all-reduce on SGLang's communicator."""
    with allocator.SymmetricMemoryContext(group):
        x = torch.ones(4 * MIB, device=DEVICE, dtype=torch.bfloat16)
    with group.pynccl_comm.change_state(enable=True):
        return kernels(lambda: group.pynccl_comm.all_reduce(x))


if __name__ == "__main__":
    common.log_kernels()
    common.distributed()
    attempt("SGLang's files", lambda: run(Path(sys.argv[1])))
    common.leave()
