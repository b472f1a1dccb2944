"""The plug-in of SGLang: entry point `sglang.srt.plugins`.

Hooks of SGLang's own registry wrap the methods of `GroupCoordinator`. A hook runs the call on
symmem, or calls the method that it wraps. SYMMEM_SGLANG=0 switches the plug-in off.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from symmem._api import collectives, messages, scopes
from symmem._torch.pytorch import compiling
from symmem.engines import rows
from symmem.engines.takeover import (
    Takeover,
    deterministic,
    report,
    switched_off,
    take_over,
)

if TYPE_CHECKING:
    import torch

SWITCH = "SYMMEM_SGLANG"

logger = logging.getLogger("sglang.symmem")

KEPT = Takeover(None, "SGLang made the group before the plug-in was loaded")
"""Stands for the takeover of a group that has none."""


taken: weakref.WeakSet[Takeover] = weakref.WeakSet()
"""The takeovers of all groups that symmem serves."""


def register() -> None:
    """Register the hooks. SGLang calls this in each of its processes, and applies them."""
    if switched_off(SWITCH):
        logger.info("symmem leaves all groups to SGLang: %s=0", SWITCH)
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    state = "sglang.srt.distributed.parallel_state.GroupCoordinator"
    pools = "sglang.srt.distributed.device_communicators.pynccl_allocator"
    HookRegistry.register(f"{state}.__init__", made, HookType.AFTER)
    for name, hook in METHODS.items():
        HookRegistry.register(f"{state}.{name}", hook, HookType.AROUND)
    for name, hook in POOLS.items():
        HookRegistry.register(f"{pools}.{name}", hook, HookType.AROUND)


def of(coordinator: Any) -> Takeover:
    """Return the takeover of a group."""
    return getattr(coordinator, "symmem", KEPT)


def made(_: None, coordinator: Any, *arguments: Any, **named: Any) -> None:
    """Take over a group that SGLang has made. Collective over it."""
    refusals = _refusals(coordinator, named)
    name = f"SGLang {coordinator.unique_name}"
    found = take_over(name, coordinator.device_group, coordinator.device, refusals)
    coordinator.symmem = found
    if found.group is not None:
        taken.add(found)
    if coordinator.rank_in_group == 0:
        report(logger, "SGLang", coordinator.unique_name, found, CALLS)


def _refusals(coordinator: Any, named: dict[str, Any]) -> Iterator[str]:
    """List the reasons to leave a group to SGLang that are the same on all of its ranks."""
    from sglang.srt.environ import envs

    kind = coordinator.device.type
    if coordinator.world_size == 1:
        yield "it has one rank"
    if named.get("rank_offset") or named.get("recovered_rank"):
        yield "its ranks join or return while others run"
    if "mooncake" in str(named.get("torch_distributed_backend", "")):
        yield "its backend is mooncake"
    if kind not in ("cpu", "cuda"):
        yield f"symmem does not run on {kind}"
    if kind == "cuda" and coordinator.pynccl_comm is None and coordinator.ca_comm is None:
        yield "SGLang gives it no communicator"
    if envs.SGLANG_ENABLE_DETERMINISTIC_INFERENCE.get() and not deterministic():
        yield "SGLANG_ENABLE_DETERMINISTIC_INFERENCE=1 needs SYMMEM_DETERMINISTIC=ranks"
    yield from _overlapping()


def _overlapping() -> Iterator[str]:
    """List the modes in which SGLang runs several batches at a time."""
    from sglang.srt.runtime_context import get_disagg, get_exec

    try:
        overlap, pdmux = get_exec().overlap.enable_two_batch_overlap, get_disagg().enable_pdmux
    except ValueError:
        return  # Groups without a server have no configuration.
    if overlap:
        yield "SGLang overlaps two batches"
    if pdmux:
        yield "SGLang multiplexes prefill and decode"


Original = Callable[..., Any]


def all_reduce(original: Original, self: Any, input_: torch.Tensor) -> torch.Tensor:
    """Sum a tensor over all ranks: in place if it is symmetric or SGLang would, else a new one."""
    found = of(self)
    if compiling() and not input_.is_cpu:
        return original(self, input_)  # type: ignore[no-any-return]
    if input_.is_cpu or found.symmetric(input_):
        if not found.takes("all_reduce", input_, input_):
            return original(self, input_)  # type: ignore[no-any-return]
        collectives.all_reduce(input_, group=found.which())
        return input_
    output = rows.all_reduce(found, input_)
    return original(self, input_) if output is None else output


def all_reduce_out_of_place(
    original: Original, self: Any, input_: torch.Tensor, method: str
) -> torch.Tensor:
    """Sum a tensor over all ranks into a new one, in code that was compiled."""
    output = rows.all_reduce(of(self), input_)
    return original(self, input_, method) if output is None else output


def all_reduce_in_place(original: Original, self: Any, input_: torch.Tensor) -> None:
    """Sum a tensor over all ranks, in place."""
    found = of(self)
    if found.takes("all_reduce", input_, input_):
        collectives.all_reduce(input_, group=found.which())
    else:
        original(self, input_)


def all_gather(
    original: Original,
    self: Any,
    input_: torch.Tensor,
    dim: int = -1,
    output_tensor_list: Any = None,
) -> Any:
    """Gather a tensor of each rank along a dimension. On GPUs `all_gather_into` does the work."""
    output = None
    if input_.is_cpu and output_tensor_list is None:
        output = rows.all_gather(of(self), input_, dim)
    return original(self, input_, dim, output_tensor_list) if output is None else output


def all_gather_into(
    original: Original, self: Any, output: torch.Tensor, input: torch.Tensor
) -> None:
    """Gather a tensor of each rank into one of the caller."""
    found = of(self)
    if found.takes("all_gather", input, output):
        collectives.all_gather_into_tensor(output, input, found.which())
    else:
        original(self, output, input)


def reduce_scatter_into(
    original: Original, self: Any, output: torch.Tensor, input: torch.Tensor
) -> torch.Tensor:
    """Sum a tensor over all ranks, and keep this rank's part."""
    found = of(self)
    if not found.takes("reduce_scatter", input, output):
        return original(self, output, input)  # type: ignore[no-any-return]
    collectives.reduce_scatter_tensor(output, input, None, found.which())
    return output


def all_to_all(original: Original, self: Any, output: torch.Tensor, input: torch.Tensor) -> None:
    """Send an equal part of a tensor to each rank."""
    found = of(self)
    if found.takes("all_to_all", input, output):
        collectives.all_to_all_single(output, input, group=found.which(), equal_splits=True)
    else:
        original(self, output, input)


def all_gatherv(
    original: Original, self: Any, input_: Any, sizes: Any = None, output: Any = None
) -> Any:
    """Gather rows of one tensor or several, of which each rank has its own number."""
    tensors = input_ if isinstance(input_, list) else [input_]
    outputs = None
    if output is None or len(tensors) == 1:
        outputs = rows.all_gather_rows(of(self), tensors, sizes, output)
    return original(self, input_, sizes, output) if outputs is None else outputs


def reduce_scatterv(
    original: Original, self: Any, input_: torch.Tensor, output: Any = None, sizes: Any = None
) -> torch.Tensor:
    """Sum rows over all ranks, and keep this rank's, of which each has its own number."""
    found = rows.reduce_scatter_rows(of(self), input_, sizes, output)
    return original(self, input_, output, sizes) if found is None else found


def broadcast(original: Original, self: Any, input_: torch.Tensor, src: int = 0) -> torch.Tensor:
    """Copy one rank's tensor to all."""
    found = of(self)
    if not found.takes("broadcast", input_, input_):
        return original(self, input_, src)  # type: ignore[no-any-return]
    collectives.broadcast(input_, group=found.which(), group_src=src)
    return input_


def send(original: Original, self: Any, tensor: torch.Tensor, dst: int | None = None) -> None:
    """Send a tensor to a rank of the group, the next one unless given."""
    found = of(self)
    if found.takes("send", tensor, tensor):
        peer = (self.rank_in_group + 1) % self.world_size if dst is None else dst
        messages.send(tensor, group=found.group, group_dst=peer)
    else:
        original(self, tensor, dst)


def recv(
    original: Original, self: Any, size: Any, dtype: torch.dtype, src: int | None = None
) -> torch.Tensor:
    """Receive a tensor from a rank of the group, the previous one unless given."""
    found = of(self)
    if not found.receives(dtype):
        return original(self, size, dtype, src)  # type: ignore[no-any-return]
    import torch

    tensor = torch.empty(size, dtype=dtype, device=self.device)
    peer = (self.rank_in_group - 1) % self.world_size if src is None else src
    messages.recv(tensor, group=found.group, group_src=peer)
    return tensor


def destroy(original: Original, self: Any) -> None:
    """Close symmem's group and destroy SGLang's."""
    of(self).close()
    original(self)


def use_symmetric_memory(
    original: Original, coordinator: Any, disabled: bool = False
) -> AbstractContextManager[Any]:
    """Open a scope of symmem's group where SGLang would open its scope."""
    from sglang.srt.distributed.device_communicators import pynccl_allocator

    group = of(coordinator).group
    if group is None or disabled or not pynccl_allocator.is_symmetric_memory_enabled():
        return original(coordinator, disabled)  # type: ignore[no-any-return]
    return scopes.use(group)


class Paused:
    """A scope that is suspended while only some ranks allocate."""

    def __init__(self, scope: AbstractContextManager[Any]):
        self.scope = scope


def disable_symmetric_memory_context(original: Original) -> Any:
    """Suspend the scope of this thread, and return what `restore` takes."""
    saved = original()
    groups = [found.group for found in taken if found.group is not None]
    if saved is None and groups and groups[0].runtime.diverted():
        saved = Paused(scopes.use(groups[0], disabled=True))
        saved.scope.__enter__()
    return saved


def restore_symmetric_memory_context(original: Original, saved: Any) -> None:
    """Resume the scope that was suspended."""
    if isinstance(saved, Paused):
        saved.scope.__exit__(None, None, None)
    else:
        original(saved)


def is_tensor_in_symmetric_mempool(original: Original, tensor: torch.Tensor) -> bool:
    """Report whether a tensor is in symmetric memory of any group."""
    return any(found.symmetric(tensor) for found in taken) or bool(original(tensor))


METHODS: dict[str, Callable[..., Any]] = {
    "all_reduce": all_reduce,
    "_all_reduce_out_place": all_reduce_out_of_place,
    "_all_reduce_in_place": all_reduce_in_place,
    "all_gather": all_gather,
    "_all_gather_into_tensor": all_gather_into,
    "_reduce_scatter_tensor": reduce_scatter_into,
    "_all_to_all_single": all_to_all,
    "all_gatherv": all_gatherv,
    "reduce_scatterv": reduce_scatterv,
    "broadcast": broadcast,
    "send": send,
    "recv": recv,
    "destroy": destroy,
}
"""The hooks around methods of `GroupCoordinator`, by their names."""

POOLS: dict[str, Callable[..., Any]] = {
    "use_symmetric_memory": use_symmetric_memory,
    "disable_symmetric_memory_context": disable_symmetric_memory_context,
    "restore_symmetric_memory_context": restore_symmetric_memory_context,
    "is_tensor_in_symmetric_mempool": is_tensor_in_symmetric_mempool,
}
"""The hooks around functions of `pynccl_allocator`, by their names."""

CALLS = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "all_to_all": "all_to_all",
    "all_gatherv": "all_gather",
    "reduce_scatterv": "reduce_scatter",
    "broadcast": "broadcast",
    "send": "send",
    "recv": "recv",
}
"""The operations of the calls that are taken over, for the log."""
