"""Makes tensors that PyTorch creates in a scope on the host backend symmetric.

Because PyTorch has no hook for its CPU allocations, a scope intercepts the functions that create
tensors, such as `torch.zeros`, `torch.empty_like` and `Tensor.new_zeros`; `NAMES` and `METHODS`
list them all. Results of other operations, such as `a + b`, are ordinary tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from symmem._torch.pytorch import compiling, pytorch

if TYPE_CHECKING:
    import torch

    Make = Callable[[tuple[int, ...], torch.dtype], torch.Tensor]

UNINITIALIZED = ("empty", "empty_like")
"""The functions whose results are uninitialized, so that no values have to be copied."""

NAMES = (
    *UNINITIALIZED,
    *("zeros", "ones", "full", "eye", "arange", "linspace", "logspace", "tensor"),
    *("rand", "randn", "randint", "randperm", "normal"),
    *("zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like"),
)
"""The functions of torch that create tensors."""

METHODS = ("new_empty", "new_zeros", "new_ones", "new_full", "new_tensor")
"""The methods of tensors that create tensors."""


def scratch(shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
    """Return an uninitialized tensor that is ordinary even in a scope on the host backend.

    It comes from a function that scopes do not intercept.
    """
    order = tuple(range(len(shape)))
    tensor: torch.Tensor = pytorch().module.empty_permuted(
        shape, order, dtype=like.dtype, device=like.device
    )
    return tensor


@cache
def factories(make: Make) -> Any:
    """Return a context in which PyTorch's factory functions return tensors allocated by `make`.

    Args:
        make: returns an uninitialized tensor, possibly an ordinary one, of a shape and a dtype.
    """
    module = pytorch().module
    makers = {getattr(module, name): name in UNINITIALIZED for name in NAMES}
    makers |= {getattr(module.Tensor, name): name == "new_empty" for name in METHODS}

    class Factories(module.overrides.TorchFunctionMode):  # type: ignore[misc, name-defined]
        """Intercepts the factory functions on one thread."""

        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            result = function(*args, **kwargs)
            if compiling() or function not in makers or kwargs.get("out") is not None:
                return result
            return _move(result, make, values=not makers[function])

    return Factories()


def _move(tensor: torch.Tensor, make: Make, values: bool) -> torch.Tensor:
    """Replace a tensor by one allocated with `make`, if it is a dense, contiguous CPU tensor."""
    plain = type(tensor) is pytorch().tensor and tensor.layout is pytorch().strided
    if not plain or tensor.device.type != "cpu" or not tensor.is_contiguous() or tensor.is_pinned():
        return tensor
    moved = make(tuple(tensor.shape), tensor.dtype)
    if values:
        with pytorch().module.no_grad():
            moved.copy_(tensor)
    return moved.requires_grad_(tensor.requires_grad)
