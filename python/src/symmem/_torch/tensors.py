"""Rejects tensors that a collective cannot use, and suggests what to pass instead.

Many tensor classes have a shape but no memory, because they wrap other tensors or are placeholders
for tensors that are created later.
"""

from __future__ import annotations

from typing import Any

from symmem import errors
from symmem._torch.pytorch import modules, pytorch


def require_memory(name: str, tensor: Any, device: int | None) -> None:
    """Raise an error unless a tensor is dense, is on the rank's device and has memory.

    Args:
        name: the caller's name for the argument.
        tensor: the argument, which need not be a tensor.
        device: the ordinal of the rank's CUDA device, or None on the host backend.
    """
    if not isinstance(tensor, pytorch().tensor):
        raise errors.InvalidError(f"{name} is a {type(tensor).__name__}, not a torch.Tensor")
    if (reason := _stand_in(name, tensor)) is not None:
        raise errors.UnsupportedError(f"{name} {reason}")
    if tensor.layout is not pytorch().strided:
        raise errors.UnsupportedError(f"{name} {_layout(name, tensor)}")
    if tensor.get_device() != (-1 if device is None else device):
        ours = "the host" if device is None else f"cuda:{device}"
        raise errors.InvalidError(
            f"{name} is on {tensor.device}, but symmem was initialized on {ours}"
        )
    if not has_memory(tensor):
        raise errors.UnsupportedError(f"{name} {_empty(name, tensor)}")


def has_memory(tensor: Any) -> bool:
    """Return whether a tensor has an address or no elements."""
    try:
        return bool(tensor.data_ptr() or not tensor.numel())
    except (RuntimeError, ValueError):
        return False


def _stand_in(name: str, tensor: Any) -> str | None:
    """Describe a wrapper or placeholder, on which other queries may fail; None for real tensors."""
    torch = pytorch().module
    distributed = modules.get("torch.distributed.tensor")
    if distributed is not None and isinstance(tensor, distributed.DTensor):
        return f"is a DTensor; pass its part on this rank, {name}.to_local()"
    if pytorch().is_fake(tensor):
        return "is a fake tensor, which has no data; run without FakeTensorMode"
    if torch.nn.parameter.is_lazy(tensor):
        return "is a lazy parameter without a shape; call its module once before the collective"
    if pytorch().in_transform(tensor):
        return (
            "is a wrapper in a torch.func transform, such as vmap or grad; call the collective "
            "outside the transform"
        )
    if tensor.is_meta:
        return (
            "is on the meta device, which has no memory; allocate it on the rank's device first, "
            "as torch.nn.Module.to_empty does with the parameters of a module"
        )
    return None


def _layout(name: str, tensor: Any) -> str:
    torch = pytorch().module
    if tensor.layout is torch.jagged:
        return f"is a nested tensor with rows of different lengths; pass {name}.values()"
    if tensor.layout is pytorch().mkldnn:
        return f"has the mkldnn layout; pass {name}.to_dense()"
    return f"is sparse ({tensor.layout}); pass {name}.to_dense(), or its values and indices"


def _empty(name: str, tensor: Any) -> str:
    """Describe why a dense tensor on the rank's device has no address."""
    torch = pytorch().module
    kind = type(tensor)
    if kind not in (torch.Tensor, torch.nn.Parameter):
        return (
            f"is a {kind.__module__}.{kind.__qualname__}, which has no memory; pass the tensors "
            "that it wraps, one by one"
        )
    return (
        "has no memory, because its storage was freed, as FSDP does between the uses of a "
        "parameter; pass it while it has data"
    )
