"""The all-reduce that also adds to a residual and normalizes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from symmem import errors
from symmem._api import compiled
from symmem._api.call import Call, checked
from symmem._rank.session import find
from symmem._torch.autograd import refuse
from symmem._torch.pytorch import compiling, modules, pytorch

if TYPE_CHECKING:
    import torch

    from symmem._api.terms import GroupLike


def all_reduce_rms_norm(
    tensor: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    group: GroupLike = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Combine rows over all ranks, add them to a residual and normalize it.

    It does what these lines do. The residual is the same to the bit; the norm up to the order of
    its sum and the rounding of products:

        y = all_reduce(tensor)
        residual += y
        r = residual.float()
        return (r * torch.rsqrt(r.pow(2).mean(-1, keepdim=True) + eps) * weight.float()).bfloat16()

    Args:
        tensor: [..., hidden] of bfloat16, contiguous, symmetric or not; hidden is a multiple of 8
            up to 16384. The addresses of this and of all other tensors are multiples of 16.
        residual: of the same shape, the same on all ranks; it is written.
        weight: [hidden].
        eps: what is added to the mean of squares.
        group: any argument that `symmem.group` accepts; the default is the world.
        out: where the result goes, which may be `tensor`; a new tensor unless given.

    Raises:
        UnsupportedError: on all ranks, where there is no direct path, or where more than about
            7 MiB of rows are not symmetric, both `tensor` and `out`: then use these lines.
    """
    if compiling():
        output = modules["torch"].empty_like(tensor) if out is None else out
        name = compiled.group_name(group)
        compiled.operators().all_reduce_rms_norm_(output, residual, tensor, weight, eps, name)
        compiled.finished(False, "symmem.all_reduce_rms_norm", [output, residual], [tensor, weight])
        return output
    call = Call(find(group), False)
    output = pytorch().module.empty_like(tensor) if out is None else out
    named = {"tensor": tensor, "residual": residual, "weight": weight, "out": output}
    for name, each in named.items():
        _require_bfloat16(call, name, each)
    hidden = weight.numel()
    if tensor.dim() == 0 or tensor.shape[-1] != hidden or weight.dim() != 1:
        raise errors.InvalidError(
            f"weight is {tuple(weight.shape)}, which are no rows of {tuple(tensor.shape)}"
        )
    for name in ("residual", "out"):
        if named[name].shape != tensor.shape:
            raise errors.InvalidError(
                f"{name} is {tuple(named[name].shape)}, tensor is {tuple(tensor.shape)}"
            )
    rows = tensor.numel() // max(hidden, 1)
    places = [t.data_ptr() for t in (tensor, residual, weight, output)]
    call.run("symmem_all_reduce_rms_norm", rows, hidden, eps, *places)
    if any(t.requires_grad for t in named.values()):
        refuse("symmem.all_reduce_rms_norm", [output, residual])
    return output


def _require_bfloat16(call: Call, name: str, tensor: torch.Tensor) -> None:
    """Take a tensor for a call, unless it would have to be copied or is of another type."""
    if not checked(call.group, name, tensor):
        raise errors.InvalidError(f"{name} is not contiguous: pass {name}.contiguous()")
    call.read(name, tensor)
    if tensor.dtype is not pytorch().module.bfloat16:
        raise errors.InvalidError(f"{name} is of {tensor.dtype}: only bfloat16 can be normalized")
