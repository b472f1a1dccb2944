"""PyTorch's functions and tables, looked up when they are first needed.

Importing symmem does not import torch. This is the only module that uses private names of PyTorch,
those with an underscore in front: they may change in any release.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from typing import TYPE_CHECKING, Any

from symmem import errors
from symmem._c.constants import BYTES, TYPES, Type
from symmem._c.terms import LOGICAL, REDUCTIONS, Reduction

if TYPE_CHECKING:
    import torch

OLDEST = (2, 8)


modules = sys.modules

DISTRIBUTED = "torch.distributed.distributed_c10d"
"""The module that has the backends of torch.distributed."""

DYNAMO = "torch._dynamo"
"""The module that compiles, in `modules` once a program has used torch.compile."""


def loaded() -> bool:
    """Report whether the program has imported torch."""
    return "torch" in modules


def compiling() -> bool:
    """Report whether PyTorch traces the caller for torch.compile.

    A program that never compiles pays for one look into a dictionary.
    """
    return DYNAMO in modules and bool(modules["torch"].compiler.is_compiling())


class Torch:
    """PyTorch's functions and tables, as attributes.

    Attributes:
        module: torch itself.
        tensor: the class of tensors.
        strided: the layout of tensors that are not sparse.
        mkldnn: the layout of tensors whose memory is mkldnn's.
        in_transform: reports whether a tensor is a wrapper in a transform of torch.func.
        distributed: torch.distributed, or None where PyTorch was built without it.
        types: the element types that can be reduced.
        raw_stream: the current stream of a device, as a number.
        nested_pools: whether the innermost of nested pools gets allocations (PyTorch 2.11).
    """

    def __init__(self) -> None:
        try:
            import torch
            import torch.distributed as dist
        except ImportError as e:
            raise errors.TorchError(f"this needs PyTorch: {e}") from e
        self.version = _release(torch.__version__)
        if self.version < OLDEST:
            raise errors.TorchError(
                f"PyTorch {torch.__version__} is older than {OLDEST[0]}.{OLDEST[1]}, whose pools "
                "follow threads; install a newer one"
            )
        self.module: Any = torch
        self.tensor: type[torch.Tensor] = torch.Tensor
        self.strided = torch.strided
        self.mkldnn = torch._mkldnn  # type: ignore[attr-defined]
        self.distributed: Any = dist if dist.is_available() else None
        self.types = {getattr(torch, name): t for name, t in TYPES.items()}
        c: Any = torch._C
        self.in_transform: Any = c._functorch.is_functorch_wrapped_tensor
        self.raw_stream: Any = getattr(c, "_cuda_getCurrentRawStream", None)
        self.is_capturing: Any = getattr(c, "_cuda_isCurrentStreamCapturing", None)
        self.begin: Any = getattr(c, "_cuda_beginAllocateCurrentThreadToPool", None)
        self.begin_all: Any = getattr(c, "_cuda_beginAllocateToPool", None)
        self.end: Any = getattr(c, "_cuda_endAllocateToPool", None)
        self.release: Any = getattr(c, "_cuda_releasePool", None)
        self.nested_pools = self.version >= (2, 11)

    def initialized(self) -> bool:
        """Report whether torch.distributed has a default process group."""
        return self.distributed is not None and self.distributed.is_initialized()

    def ranks_of(self, process_group: Any) -> tuple[int, ...]:
        """List the ranks of a process group."""
        try:
            return tuple(self.distributed.get_process_group_ranks(process_group))
        except (KeyError, ValueError):
            raise errors.InvalidError(
                f"torch.distributed does not know {process_group!r}: it was destroyed, or was not "
                "made by new_group, init_device_mesh or their like"
            ) from None

    def is_fake(self, tensor: Any) -> bool:
        """Report whether a tensor is of FakeTensorMode."""
        module = modules.get("torch._subclasses.fake_tensor")
        return module is not None and isinstance(tensor, module.FakeTensor)

    def store_of(self, process_group: Any) -> Any:
        """Find the store in which a process group has met; None where its backend needs none."""
        return self.distributed.distributed_c10d._get_process_group_store(process_group)

    def group_named(self, name: str) -> Any:
        """Find a process group by the name that PyTorch gave it, such as "0", or return None."""
        if not self.initialized():
            return None
        try:
            return self.distributed.distributed_c10d._resolve_process_group(name)
        except (LookupError, ValueError, RuntimeError):
            return None

    def timeout_of(self, process_group: Any) -> float | None:
        """Return the timeout of a process group in seconds, or None if its backend has none."""
        for device in process_group._device_types:
            try:
                backend = process_group._get_backend(device)
                if type(backend).options is _DEFAULT_OPTIONS:
                    continue
                found: float = backend.options._timeout.total_seconds()
            except (AttributeError, RuntimeError):
                continue  # Before PyTorch 2.9, a backend without options, or not of this group.
            return found
        return None

    def backend_of(self, process_group: Any) -> Any:
        """Return the backend of a process group for tensors on the CPU."""
        return process_group._get_backend(self.module.device("cpu"))

    def overlaps_itself(self, tensor: torch.Tensor) -> bool:
        """Report whether elements of a tensor share memory, where PyTorch can decide that."""
        return bool(self.module._debug_has_internal_overlap(tensor) == 1)

    def element(self, dtype: torch.dtype) -> Type:
        """Find the type by which elements are moved when nothing is computed."""
        found = self.types.get(dtype)
        if found is None:
            found = BYTES.get(dtype.itemsize)
        if found is None:
            raise errors.UnsupportedError(f"elements of {dtype} cannot be moved")
        return found

    def reduction(self, dtype: torch.dtype, op: Any) -> tuple[Type, Reduction]:
        """Find the type and the reduction for `torch.distributed`'s op, or one by name."""
        reduction = reduction_of(op)
        if dtype is self.module.bool:
            return _logical(reduction)
        if dtype.is_complex:
            if reduction not in (Reduction.SUM, Reduction.AVG, Reduction.PREMUL_SUM):
                raise errors.InvalidError(
                    f"complex numbers have no {reduction.name.lower()} here: sum, avg or premul_sum"
                )
            dtype = dtype.to_real()
        found = self.types.get(dtype)
        if found is None:
            raise errors.UnsupportedError(
                f"{dtype} cannot be reduced: one of {', '.join(TYPES)}, or bool"
            )
        return found, reduction


_OPS: dict[Any, Reduction] = {None: Reduction.SUM}


def reduction_of(op: Any) -> Reduction:
    """Find a reduction by `torch.distributed`'s op, or by name; None is the sum.

    The name of `premul_sum` is followed by a colon and the factor, as in "premul_sum:0.5".
    """
    try:
        return _OPS[op]
    except (KeyError, TypeError):
        pass
    inner = getattr(op, "op", op)
    name = op if isinstance(op, str) else getattr(inner, "name", str(inner).rpartition(".")[2])
    name, colon, _ = str(name).lower().partition(":")
    found = REDUCTIONS.get(name)
    if found is None or (colon and found is not Reduction.PREMUL_SUM):
        kind = errors.UnsupportedError if name == "unused" else errors.InvalidError
        raise kind(f"reduction {op!r}: one of {', '.join(REDUCTIONS)}")
    if found is not Reduction.PREMUL_SUM and (isinstance(op, str) or inner is op):
        _OPS[op] = found
    return found


def factor_of(op: Any) -> float:
    """Read the factor of a `premul_sum`, as PyTorch or `reduction_of` writes it.

    A factor in a tensor on a GPU is copied to the host, which waits for the GPU.
    """
    try:
        # PyTorch shows the factor only where it pickles a ReduceOp.
        return float(op.partition(":")[2] if isinstance(op, str) else op.__getstate__()[1])
    except (AttributeError, TypeError, ValueError, IndexError):
        raise errors.InvalidError(
            f"reduction {op!r} has no factor: pass torch.distributed._make_nccl_premul_sum(0.5) or "
            '"premul_sum:0.5"'
        ) from None


def _logical(reduction: Reduction) -> tuple[Type, Reduction]:
    """Turn a reduction of truth values, which are bytes of 0 or 1, into one of numbers."""
    if reduction not in LOGICAL:
        raise errors.UnsupportedError(f"truth values have no reduction {reduction.name.lower()}")
    return Type.UINT8, LOGICAL[reduction]


def _release(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    digits = "".join(d for d in minor if d.isdigit())
    return int(major), int(digits or 0)


@cache
def pytorch() -> Torch:
    """Look PyTorch up, once; `TorchError` where there is none or it is too old."""
    return Torch()


def add_backend(name: str, create: Any, devices: list[str]) -> None:
    """Register a backend of torch.distributed, once."""
    module = modules[DISTRIBUTED]
    if name.upper() not in module.Backend._plugins:
        module.Backend.register_backend(name, create, extended_api=True, devices=devices)
        _complete(modules["torch"]._C._distributed_c10d.Backend)


def _complete(backends: Any) -> None:
    """Add to the class of backends what PyTorch calls on those that support splitting.

    new_group calls `perform_nocolor_split` on ranks outside the new group if the default group is
    bound to a device, and split_group copies the options.
    """
    if not hasattr(backends, "perform_nocolor_split"):
        backends.perform_nocolor_split = lambda backend, device: None
    options = backends.Options
    if not hasattr(options, "__deepcopy__"):
        options.__deepcopy__ = lambda options, _: options
    if not hasattr(backends, "options"):  # PyTorch 2.11
        backends.options = _DEFAULT_OPTIONS


_DEFAULT_OPTIONS = property(
    lambda backend: modules["torch"]._C._distributed_c10d.Backend.Options(backend.name())
)
"""Stands for the options of a backend that PyTorch does not show. Their timeout is the default."""


def devices_of(backend: str) -> frozenset[str]:
    """List the types of devices for which torch.distributed is making a backend.

    PyTorch does not pass them to the backend. They are in a local variable of a function that
    calls it; without the variable they are all types.
    """
    frame: Any = sys._getframe(1)
    while frame is not None:
        config = frame.f_locals.get("backend_config")
        if hasattr(config, "get_device_backend_map"):
            names = config.get_device_backend_map().items()
            return frozenset(device for device, name in names if name == backend)
        frame = frame.f_back
    return frozenset(("cpu", "cuda"))


def set_memory_backend(device: str, name: str) -> None:
    """Choose the backend of PyTorch's symmetric memory for a type of devices."""
    from torch.distributed import _symmetric_memory

    memory: Any = _symmetric_memory
    if memory.get_backend(modules["torch"].device(device)) != name:
        memory.set_backend(name)


def allocate_from_groups(backend: str) -> None:
    """Make DDP and FSDP2 allocate the buffers of collectives from groups of a backend.

    It is for models that are wrapped later.
    """
    os.environ.setdefault("DDP_DISABLE_COMM_MEM", "0")
    _fsdp_from_groups(backend)


@cache
def _fsdp_from_groups(backend: str) -> None:
    from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

    initialize = FSDPParamGroup.__init__

    def from_group(params: Any, *arguments: Any, **named: Any) -> None:
        initialize(params, *arguments, **named)
        group = getattr(params.mesh_info, "shard_process_group", None)
        if group is not None and group._get_backend(params.device).name() == backend:
            params.set_allocate_memory_from_process_group(True)

    setattr(FSDPParamGroup, "__init__", from_group)  # noqa: B010


def is_view(tensor: torch.Tensor) -> bool:
    """Report whether autograd has a tensor as a view of another one."""
    return tensor._is_view()


def is_known(process_group: Any) -> bool:
    """Report whether torch.distributed still has a process group, which was not destroyed."""
    return process_group in pytorch().distributed.distributed_c10d._world.pg_map


def communicator_of(process_group: Any, device: int) -> int:
    """Return the address of a process group's ncclComm_t on a CUDA device.

    It is 0 before the communicator is made, and after it was aborted.
    """
    found = pytorch().module
    backend = process_group._get_backend(found.device("cuda", device))
    if not hasattr(backend, "_comm_ptr"):
        raise errors.TorchError(
            f"{type(backend).__name__} of PyTorch {found.__version__} has no function that returns "
            "its communicator: attach needs the nccl backend of PyTorch 2.9 or newer"
        )
    try:
        return int(backend._comm_ptr() or 0)
    except RuntimeError:
        return 0
