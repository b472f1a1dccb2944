"""The plug-in for SGLang, with the entry point `sglang.srt.plugins`.

The plug-in registers hooks around the methods of `GroupCoordinator` with SGLang's hook registry. A
hook either runs the call on symmem or calls the original method. SYMMEM_SGLANG=0 turns the plug-in
off.
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

FUSED_NORM = "flashinfer_comm_fusion.flashinfer_allreduce_residual_rmsnorm"
"""SGLang's function that fuses an all-reduce, the addition of a residual, and a norm."""

logger = logging.getLogger("sglang.symmem")

KEPT = Takeover(None, "SGLang created the group before the plug-in was loaded")
"""The takeover of groups that SGLang created before the plug-in was loaded."""


taken: weakref.WeakSet[Takeover] = weakref.WeakSet()
"""The takeovers of all groups whose calls symmem runs."""


def register() -> None:
    """Register the hooks, which SGLang then installs. Called in each of its processes."""
    if switched_off(SWITCH):
        logger.info("symmem leaves all groups to SGLang: %s=0", SWITCH)
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    state = "sglang.srt.distributed.parallel_state.GroupCoordinator"
    pools = "sglang.srt.distributed.device_communicators.pynccl_allocator"
    HookRegistry.register(f"{state}.__init__", after_init, HookType.AFTER)
    for name, hook in METHODS.items():
        HookRegistry.register(f"{state}.{name}", hook, HookType.AROUND)
    for name, hook in POOLS.items():
        HookRegistry.register(f"{pools}.{name}", hook, HookType.AROUND)
    HookRegistry.register(f"sglang.srt.layers.{FUSED_NORM}", fused_norm, HookType.AROUND)


def takeover_of(coordinator: Any) -> Takeover:
    """Return the takeover of a group."""
    return getattr(coordinator, "symmem", KEPT)


def after_init(_: None, coordinator: Any, *arguments: Any, **named: Any) -> None:
    """Take over a group that SGLang has just created. Collective over the group."""
    refusals = _refusals(coordinator, named)
    name = f"SGLang {coordinator.unique_name}"
    takeover = take_over(name, coordinator.device_group, coordinator.device, refusals)
    coordinator.symmem = takeover
    if takeover.group is not None:
        taken.add(takeover)
    if coordinator.rank_in_group == 0:
        report(logger, "SGLang", coordinator.unique_name, takeover, CALLS)


def _refusals(coordinator: Any, named: dict[str, Any]) -> Iterator[str]:
    """Yield the reasons to leave a group to SGLang that are the same on all of its ranks."""
    from sglang.srt.environ import envs

    kind = coordinator.device.type
    if coordinator.world_size == 1:
        yield "it has one rank"
    if named.get("rank_offset") or named.get("recovered_rank"):
        yield "its ranks may join or return later than others"
    if "mooncake" in str(named.get("torch_distributed_backend", "")):
        yield "its backend is mooncake"
    if kind not in ("cpu", "cuda"):
        yield f"symmem does not run on {kind}"
    if kind == "cuda" and coordinator.pynccl_comm is None and coordinator.ca_comm is None:
        yield "it has no communicator in SGLang"
    if envs.SGLANG_ENABLE_DETERMINISTIC_INFERENCE.get() and not deterministic():
        yield "SGLANG_ENABLE_DETERMINISTIC_INFERENCE=1 needs SYMMEM_DETERMINISTIC=ranks"
    yield from _overlapping()


def _overlapping() -> Iterator[str]:
    """Yield the modes in which SGLang runs several batches at the same time."""
    from sglang.srt.runtime_context import get_disagg, get_exec

    try:
        overlap, pdmux = get_exec().overlap.enable_two_batch_overlap, get_disagg().enable_pdmux
    except ValueError:
        return  # Outside a server, SGLang has no configuration.
    if overlap:
        yield "SGLang overlaps two batches"
    if pdmux:
        yield "SGLang multiplexes prefill and decode"


Original = Callable[..., Any]


def all_reduce(original: Original, self: Any, input_: torch.Tensor) -> torch.Tensor:
    """Sum a tensor over all ranks, in place if it is symmetric or on the CPU."""
    takeover = takeover_of(self)
    if compiling() and not input_.is_cpu:
        return original(self, input_)  # type: ignore[no-any-return]
    if input_.is_cpu or takeover.symmetric(input_):
        if not takeover.takes("all_reduce", input_, input_):
            return original(self, input_)  # type: ignore[no-any-return]
        collectives.all_reduce(input_, group=takeover.group_argument())
        return input_
    output = rows.all_reduce(takeover, input_)
    return original(self, input_) if output is None else output


def all_reduce_out_of_place(
    original: Original, self: Any, input_: torch.Tensor, method: str
) -> torch.Tensor:
    """Sum a tensor over all ranks into a new one, in compiled code."""
    output = rows.all_reduce(takeover_of(self), input_)
    return original(self, input_, method) if output is None else output


def all_reduce_in_place(original: Original, self: Any, input_: torch.Tensor) -> None:
    """Sum a tensor over all ranks, in place."""
    takeover = takeover_of(self)
    if takeover.takes("all_reduce", input_, input_):
        collectives.all_reduce(input_, group=takeover.group_argument())
    else:
        original(self, input_)


def all_gather(
    original: Original,
    self: Any,
    input_: torch.Tensor,
    dim: int = -1,
    output_tensor_list: Any = None,
) -> Any:
    """Gather a tensor of each rank along a dimension. On GPUs, SGLang calls `all_gather_into`."""
    output = None
    if input_.is_cpu and output_tensor_list is None:
        output = rows.all_gather(takeover_of(self), input_, dim)
    return original(self, input_, dim, output_tensor_list) if output is None else output


def all_gather_into(
    original: Original, self: Any, output: torch.Tensor, input: torch.Tensor
) -> None:
    """Gather a tensor of each rank into the output."""
    takeover = takeover_of(self)
    if takeover.takes("all_gather", input, output):
        collectives.all_gather_into_tensor(output, input, takeover.group_argument())
    else:
        original(self, output, input)


def reduce_scatter_into(
    original: Original, self: Any, output: torch.Tensor, input: torch.Tensor
) -> torch.Tensor:
    """Sum a tensor over all ranks, and store this rank's part in the output."""
    takeover = takeover_of(self)
    if not takeover.takes("reduce_scatter", input, output):
        return original(self, output, input)  # type: ignore[no-any-return]
    collectives.reduce_scatter_tensor(output, input, None, takeover.group_argument())
    return output


def all_to_all(original: Original, self: Any, output: torch.Tensor, input: torch.Tensor) -> None:
    """Send an equal part of a tensor to each rank."""
    takeover = takeover_of(self)
    if takeover.takes("all_to_all", input, output):
        collectives.all_to_all_single(
            output, input, group=takeover.group_argument(), equal_splits=True
        )
    else:
        original(self, output, input)


def all_gatherv(
    original: Original, self: Any, input_: Any, sizes: Any = None, output: Any = None
) -> Any:
    """Gather rows of one or more tensors. The number of rows may differ between ranks."""
    tensors = input_ if isinstance(input_, list) else [input_]
    outputs = None
    if output is None or len(tensors) == 1:
        outputs = rows.all_gather_rows(takeover_of(self), tensors, sizes, output)
    return original(self, input_, sizes, output) if outputs is None else outputs


def reduce_scatterv(
    original: Original, self: Any, input_: torch.Tensor, output: Any = None, sizes: Any = None
) -> torch.Tensor:
    """Sum rows over all ranks, and return this rank's part. The parts may differ in size."""
    result = rows.reduce_scatter_rows(takeover_of(self), input_, sizes, output)
    return original(self, input_, output, sizes) if result is None else result


def broadcast(original: Original, self: Any, input_: torch.Tensor, src: int = 0) -> torch.Tensor:
    """Copy one rank's tensor to all ranks."""
    takeover = takeover_of(self)
    if not takeover.takes("broadcast", input_, input_):
        return original(self, input_, src)  # type: ignore[no-any-return]
    collectives.broadcast(input_, group=takeover.group_argument(), group_src=src)
    return input_


def send(original: Original, self: Any, tensor: torch.Tensor, dst: int | None = None) -> None:
    """Send a tensor to a rank of the group; the default is the next rank."""
    takeover = takeover_of(self)
    if takeover.takes("send", tensor, tensor):
        peer = (self.rank_in_group + 1) % self.world_size if dst is None else dst
        messages.send(tensor, group=takeover.group, group_dst=peer)
    else:
        original(self, tensor, dst)


def recv(
    original: Original, self: Any, size: Any, dtype: torch.dtype, src: int | None = None
) -> torch.Tensor:
    """Receive a tensor from a rank of the group; the default is the previous rank."""
    takeover = takeover_of(self)
    if not takeover.receives(dtype):
        return original(self, size, dtype, src)  # type: ignore[no-any-return]
    import torch

    tensor = torch.empty(size, dtype=dtype, device=self.device)
    peer = (self.rank_in_group - 1) % self.world_size if src is None else src
    messages.recv(tensor, group=takeover.group, group_src=peer)
    return tensor


def fused_norm(
    original: Original,
    input_tensor: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float = 1e-6,
    *arguments: Any,
    use_attn_tp_group: bool = True,
    **named: Any,
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Sum rows over all ranks, add them to a copy of the residual, and normalize the copy.

    SGLang calls this function if its fusion of all-reduce and norm is enabled. (None, None) means
    that SGLang makes the steps separately.
    """
    from sglang.srt.layers import flashinfer_comm_fusion

    tensors = input_tensor, residual, weight
    takeover = KEPT
    resolve = getattr(flashinfer_comm_fusion, "resolve_fusion_group", None)
    if resolve is not None and not compiling():
        takeover = takeover_of(resolve(use_attn_tp_group=use_attn_tp_group)[-1])
    found = takeover.all_reduce_rms_norm(*tensors, eps)
    if found is not None:
        return found
    named["use_attn_tp_group"] = use_attn_tp_group
    return original(*tensors, eps, *arguments, **named)  # type: ignore[no-any-return]


def destroy(original: Original, self: Any) -> None:
    """Close symmem's group and destroy SGLang's group."""
    takeover_of(self).close()
    original(self)


def use_symmetric_memory(
    original: Original, coordinator: Any, disabled: bool = False
) -> AbstractContextManager[Any]:
    """Open a scope of symmem's group where SGLang would open its scope."""
    from sglang.srt.distributed.device_communicators import pynccl_allocator

    group = takeover_of(coordinator).group
    if group is None or disabled or not pynccl_allocator.is_symmetric_memory_enabled():
        return original(coordinator, disabled)  # type: ignore[no-any-return]
    return scopes.use(group)


class Paused:
    """A disabled scope, which is open while only some ranks allocate."""

    def __init__(self, scope: AbstractContextManager[Any]):
        self.scope = scope


def disable_symmetric_memory_context(original: Original) -> Any:
    """Suspend this thread's scope, and return the argument for the restore hook."""
    saved = original()
    groups = [takeover.group for takeover in taken if takeover.group is not None]
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
    """Return whether a tensor is in symmetric memory of any group."""
    return any(takeover.symmetric(tensor) for takeover in taken) or bool(original(tensor))


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
"""The hooks around methods of `GroupCoordinator`, by the name of the method."""

POOLS: dict[str, Callable[..., Any]] = {
    "use_symmetric_memory": use_symmetric_memory,
    "disable_symmetric_memory_context": disable_symmetric_memory_context,
    "restore_symmetric_memory_context": restore_symmetric_memory_context,
    "is_tensor_in_symmetric_mempool": is_tensor_in_symmetric_mempool,
}
"""The hooks around functions of `pynccl_allocator`, by the name of the function."""

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
    FUSED_NORM.rpartition(".")[2]: "all_reduce",
}
"""The operation of each call that can be taken over, for the log."""
