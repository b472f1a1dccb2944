"""Tensors that PyTorch makes inside of a scope on the host backend.

PyTorch has no hook for its allocations on CPUs. So a scope intercepts the functions of PyTorch that
make tensors: `torch.zeros`, `torch.randn`, `torch.empty_like`, `Tensor.new_zeros` and the others in
`NAMES` and `METHODS`. Results of other operations, such as `a + b`, are ordinary tensors.
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
"""The functions whose results have no values to copy."""

NAMES = (
    *UNINITIALIZED,
    *("zeros", "ones", "full", "eye", "arange", "linspace", "logspace", "tensor"),
    *("rand", "randn", "randint", "randperm", "normal"),
    *("zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like"),
)
"""Functions of torch that make tensors."""

METHODS = ("new_empty", "new_zeros", "new_ones", "new_full", "new_tensor")
"""Methods of tensors that make tensors."""


def scratch(shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
    """Make an uninitialized tensor that is ordinary in a scope on the host backend, too.

    Scopes do not intercept the function.
    """
    order = tuple(range(len(shape)))
    made: torch.Tensor = pytorch().module.empty_permuted(
        shape, order, dtype=like.dtype, device=like.device
    )
    return made


@cache
def factories(make: Make) -> Any:
    """Return the context in which PyTorch makes tensors by a function.

    Args:
        make: makes an uninitialized tensor of a shape and a type, which may be an ordinary one.
    """
    module = pytorch().module
    makers = {getattr(module, name): name in UNINITIALIZED for name in NAMES}
    makers |= {getattr(module.Tensor, name): name == "new_empty" for name in METHODS}

    class Factories(module.overrides.TorchFunctionMode):  # type: ignore[misc, name-defined]
        """Intercepts calls of PyTorch's functions on one thread."""

        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            made = function(*args, **kwargs)
            if compiling() or function not in makers or kwargs.get("out") is not None:
                return made
            return _moved(made, make, values=not makers[function])

    return Factories()


def _moved(made: torch.Tensor, make: Make, values: bool) -> torch.Tensor:
    """Return a tensor like one that PyTorch made, in memory of `make` where that can hold it."""
    plain = type(made) is pytorch().tensor and made.layout is pytorch().strided
    if not plain or made.device.type != "cpu" or not made.is_contiguous() or made.is_pinned():
        return made
    moved = make(tuple(made.shape), made.dtype)
    if values:
        with pytorch().module.no_grad():
            moved.copy_(made)
    return moved.requires_grad_(made.requires_grad)
