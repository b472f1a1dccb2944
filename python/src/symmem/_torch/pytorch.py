"""PyTorch's functions and tables, looked up on first use.

Importing symmem does not import torch. This is the only module that uses private names of PyTorch,
which begin with an underscore and may change in any release.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
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
"""The module in which torch.distributed registers its backends."""

DYNAMO = "torch._dynamo"
"""The module of torch.compile. It is in `modules` once the program has used torch.compile."""


def loaded() -> bool:
    """Return whether the program has imported torch."""
    return "torch" in modules


def compiling() -> bool:
    """Return whether torch.compile is tracing the caller.

    In a program that never compiles, this is a single dictionary lookup.
    """
    return DYNAMO in modules and bool(modules["torch"].compiler.is_compiling())


def between_graphs(function: Callable[..., Any], reason: str) -> Callable[..., Any]:
    """Return a function that compiled code calls between its graphs.

    It does what torch.compiler.disable does, but does not import the compiler, which takes seconds.
    """
    found: Any = modules["torch"]._disable_dynamo(function)
    found._torchdynamo_disable, found._torchdynamo_disable_msg = True, reason
    result: Callable[..., Any] = found
    return result


class Torch:
    """PyTorch's functions and tables, as attributes.

    Attributes:
        module: the module torch.
        tensor: torch.Tensor.
        strided: the layout of dense tensors.
        mkldnn: the layout of mkldnn tensors.
        in_transform: returns whether a tensor is a wrapper in a torch.func transform.
        distributed: torch.distributed, or None if PyTorch was built without it.
        types: the element types that can be reduced, by dtype.
        raw_stream: returns the current stream of a device as a number.
        nested_pools: whether the innermost of nested pools receives allocations, as in PyTorch
            2.11 and later.
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
                f"PyTorch {torch.__version__} is too old, because its memory pools cannot be "
                f"selected by thread; install {OLDEST[0]}.{OLDEST[1]} or later"
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
        """Return whether torch.distributed has a default process group."""
        return self.distributed is not None and self.distributed.is_initialized()

    def ranks_of(self, process_group: Any) -> tuple[int, ...]:
        """Return the global ranks of a process group."""
        try:
            return tuple(self.distributed.get_process_group_ranks(process_group))
        except (KeyError, ValueError):
            raise errors.InvalidError(
                f"torch.distributed does not know {process_group!r}; either it was destroyed, or "
                "it was not created by new_group, init_device_mesh or a similar function"
            ) from None

    def is_fake(self, tensor: Any) -> bool:
        """Return whether a tensor is a FakeTensor."""
        module = modules.get("torch._subclasses.fake_tensor")
        return module is not None and isinstance(tensor, module.FakeTensor)

    def store_of(self, process_group: Any) -> Any:
        """Return the store of a process group, or None if its backend does not need one."""
        return self.distributed.distributed_c10d._get_process_group_store(process_group)

    def group_named(self, name: str) -> Any:
        """Return the process group with the name that PyTorch gave it, such as "0", or None."""
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
                # The backend has no options, as before PyTorch 2.9, or is not of this group.
                continue
            return found
        return None

    def backend_of(self, process_group: Any) -> Any:
        """Return the backend of a process group for tensors on the CPU."""
        return process_group._get_backend(self.module.device("cpu"))

    def name_of(self, backend: Any) -> str:
        """Return the name of the process group that has a backend, or an empty string."""
        for process_group in self.distributed.distributed_c10d._world.pg_map:
            for device in process_group._device_types:
                if process_group._get_backend(device) is backend:
                    return str(process_group.group_name)
        return ""

    def overlaps_itself(self, tensor: torch.Tensor) -> bool:
        """Return whether elements of a tensor share memory, as far as PyTorch can determine."""
        return bool(self.module._debug_has_internal_overlap(tensor) == 1)

    def element(self, dtype: torch.dtype) -> Type:
        """Return the type with which elements of a dtype are copied."""
        found = self.types.get(dtype)
        if found is None:
            found = BYTES.get(dtype.itemsize)
        if found is None:
            raise errors.UnsupportedError(f"elements of dtype {dtype} are not supported")
        return found

    def reduction(self, dtype: torch.dtype, op: Any) -> tuple[Type, Reduction]:
        """Return the type and the reduction for a dtype and an op; see `reduction_of`."""
        reduction = reduction_of(op)
        if dtype is self.module.bool:
            return _logical(reduction)
        if dtype.is_complex:
            if reduction not in (Reduction.SUM, Reduction.AVG, Reduction.PREMUL_SUM):
                raise errors.InvalidError(
                    f"complex numbers do not support {reduction.name.lower()}; use sum, avg or "
                    "premul_sum"
                )
            dtype = dtype.to_real()
        found = self.types.get(dtype)
        if found is None:
            raise errors.UnsupportedError(
                f"{dtype} cannot be reduced; use one of {', '.join(TYPES)}, or bool"
            )
        return found, reduction


_OPS: dict[Any, Reduction] = {None: Reduction.SUM}


def reduction_of(op: Any) -> Reduction:
    """Return the reduction for a `torch.distributed.ReduceOp` or its name. None means the sum.

    "premul_sum" is followed by a colon and the factor, as in "premul_sum:0.5".
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
        raise kind(f"unknown reduction {op!r}; use one of {', '.join(REDUCTIONS)}")
    if found is not Reduction.PREMUL_SUM and (isinstance(op, str) or inner is op):
        _OPS[op] = found
    return found


def factor_of(op: Any) -> float:
    """Return the factor of a premul_sum, given as a ReduceOp or by name.

    If the factor is a tensor on a GPU, this copies it to the host, which waits for the GPU.
    """
    try:
        # PyTorch exposes the factor of a ReduceOp only through its pickled state.
        return float(op.partition(":")[2] if isinstance(op, str) else op.__getstate__()[1])
    except (AttributeError, TypeError, ValueError, IndexError):
        raise errors.InvalidError(
            f"reduction {op!r} has no factor; pass, for example, "
            'torch.distributed._make_nccl_premul_sum(0.5) or "premul_sum:0.5"'
        ) from None


def _logical(reduction: Reduction) -> tuple[Type, Reduction]:
    """Return the type and reduction that reduce bools, which are bytes with the value 0 or 1."""
    if reduction not in LOGICAL:
        raise errors.UnsupportedError(f"bool does not support {reduction.name.lower()}")
    return Type.UINT8, LOGICAL[reduction]


def _release(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    digits = "".join(d for d in minor if d.isdigit())
    return int(major), int(digits or 0)


@cache
def pytorch() -> Torch:
    """Return the only `Torch`. Raise `TorchError` if PyTorch is not installed or is too old."""
    return Torch()


def add_backend(
    name: str,
    create: Any,
    devices: list[str],
    methods: dict[str, Any],
    properties: dict[str, Any],
) -> None:
    """Register a backend of torch.distributed, once, and add methods to the class of all backends.

    Classes of backends that define a method, such as NCCL's, keep it. For this backend, properties
    replace PyTorch's unless their functions return None.
    """
    module = modules[DISTRIBUTED]
    if name.upper() not in module.Backend._plugins:
        module.Backend.register_backend(name, create, extended_api=True, devices=devices)
        backends = modules["torch"]._C._distributed_c10d.Backend
        _complete(backends)
        for method, function in methods.items():
            if not hasattr(backends, method):
                setattr(backends, method, function)
        for attribute, function in properties.items():
            _override(backends, attribute, name, function)


def _override(backends: Any, attribute: str, name: str, function: Any) -> None:
    """Replace a property for the backends of a given name."""
    original = getattr(backends, attribute)

    def get(backend: Any) -> Any:
        found = function(backend) if backend.name() == name else None
        return original.fget(backend) if found is None else found

    setattr(backends, attribute, property(get))


def _complete(backends: Any) -> None:
    """Add the members that PyTorch uses on backends that support splitting to their class.

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
"""Replaces the options of a backend where PyTorch does not expose them. It has the default timeout.
"""


def devices_of(backend: str) -> frozenset[str]:
    """Return the device types for which torch.distributed is creating a backend.

    PyTorch does not pass them to the backend, so they are read from a local variable of one of the
    calling functions. If no caller has the variable, all types are returned.
    """
    frame: Any = sys._getframe(1)
    while frame is not None:
        config = frame.f_locals.get("backend_config")
        if hasattr(config, "get_device_backend_map"):
            names = config.get_device_backend_map().items()
            return frozenset(device for device, name in names if name == backend)
        frame = frame.f_back
    return frozenset(("cpu", "cuda"))


def write_value(tensor: torch.Tensor, offset: int, value: int) -> torch.Tensor:
    """Write a 32-bit word of a GPU tensor on the current stream."""
    memory: Any = modules["torch"]._C._distributed_c10d._SymmetricMemory
    written: torch.Tensor = memory.stream_write_value32(tensor, offset, value)
    return written


def set_memory_backend(device: str, name: str) -> None:
    """Set the backend of PyTorch's symmetric memory for a device type."""
    from torch.distributed import _symmetric_memory

    memory: Any = _symmetric_memory
    if memory.get_backend(modules["torch"].device(device)) != name:
        memory.set_backend(name)


def allocate_from_groups(backend: str) -> None:
    """Make DDP and FSDP2 allocate communication buffers from process groups of a backend.

    This affects only models that are wrapped later.
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


@cache
def pattern_matcher() -> Any:
    """Return Inductor's module for passes that replace patterns in graphs."""
    from torch._inductor import pattern_matcher as found

    return found


def is_view(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is a view in autograd."""
    return tensor._is_view()


def is_known(process_group: Any) -> bool:
    """Return whether torch.distributed has a process group that was not destroyed."""
    return process_group in pytorch().distributed.distributed_c10d._world.pg_map


def communicator_of(process_group: Any, device: int) -> int:
    """Return the address of a process group's ncclComm_t on a CUDA device.

    The address is 0 before the communicator is created and after it was aborted.
    """
    found = pytorch().module
    backend = process_group._get_backend(found.device("cuda", device))
    if not hasattr(backend, "_comm_ptr"):
        raise errors.TorchError(
            f"{type(backend).__name__} of PyTorch {found.__version__} does not expose its "
            "communicator; attach needs the nccl backend of PyTorch 2.9 or later"
        )
    try:
        return int(backend._comm_ptr() or 0)
    except RuntimeError:
        return 0
