"""The plug-in for vLLM, with the entry point `vllm.general_plugins`.

vLLM asks its platform for the communicator class of each group. The plug-in substitutes a subclass
that runs collectives on symmem or passes them to the base class. SYMMEM_VLLM=0 turns the plug-in
off.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from symmem import errors
from symmem._api import collectives, messages
from symmem._torch.pytorch import is_known
from symmem.engines import rows
from symmem.engines.takeover import Takeover, deterministic, report, switched_off, take_over

if TYPE_CHECKING:
    import torch

SWITCH = "SYMMEM_VLLM"

CALLS = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "all_gatherv": "all_gather",
    "reduce_scatterv": "reduce_scatter",
    "broadcast": "broadcast",
    "send": "send",
    "recv": "recv",
}
"""The operation of each call that can be taken over, for the log."""

logger = logging.getLogger("vllm.symmem")


def register() -> None:
    """Make vLLM's platform return symmem's communicator class. Called in each vLLM process."""
    if switched_off(SWITCH):
        logger.info("symmem leaves all groups to vLLM: %s=0", SWITCH)
        return
    from vllm.distributed import parallel_state
    from vllm.platforms import current_platform

    platform = type(current_platform)
    original = platform.get_device_communicator_cls
    if hasattr(original, "symmem"):
        return

    def named(cls: type) -> str:
        return f"{__name__}.Communicator"

    named.symmem = original  # type: ignore[attr-defined]
    platform.get_device_communicator_cls = classmethod(named)
    coordinator = parallel_state.GroupCoordinator
    coordinator.broadcast = _broadcast_of(coordinator.broadcast)


def __getattr__(name: str) -> Any:
    """Create the class Communicator on demand, because its base class is imported late by vLLM."""
    if name != "Communicator":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from vllm.platforms import current_platform
    from vllm.utils.import_utils import resolve_obj_by_qualname

    named = type(current_platform).get_device_communicator_cls
    original = named.symmem if hasattr(named, "symmem") else named
    return _derive(resolve_obj_by_qualname(original()))


@functools.cache
def _derive(base: type[Any]) -> type[Any]:
    """Return a subclass of vLLM's communicator with symmem's collectives."""
    return type(f"Symmem{base.__name__}", (SymmemCommunicator, base), {})


def _broadcast_of(original: Any) -> Any:
    """Wrap `GroupCoordinator.broadcast`, which does not call the communicator."""

    @functools.wraps(original)
    def broadcast(self: Any, input_: torch.Tensor, src: int = 0) -> torch.Tensor:
        takeover = getattr(self.device_communicator, "takeover", None)
        if takeover is None or not takeover.takes("broadcast", input_, input_):
            result: torch.Tensor = original(self, input_, src)
            return result
        collectives.broadcast(input_, group=takeover.group_argument(), group_src=src)
        return input_

    return broadcast


def _refusals(communicator: Any) -> Iterator[str]:
    """Yield the reasons to leave a group to vLLM that are the same on all of its ranks."""
    from vllm import envs

    if communicator.world_size == 1:
        yield "it has one rank"
    if not is_known(communicator.cpu_group):
        yield "its process group is unknown to torch.distributed (elastic expert parallelism)"
    if communicator.device_group is None:
        yield "it has no device group"
    if communicator.device.type not in ("cpu", "cuda"):
        yield f"symmem does not run on {communicator.device.type}"
    if envs.VLLM_BATCH_INVARIANT and not deterministic():
        yield "VLLM_BATCH_INVARIANT=1 needs SYMMEM_DETERMINISTIC=ranks"
    if envs.VLLM_USE_NCCL_SYMM_MEM:
        yield "VLLM_USE_NCCL_SYMM_MEM=1 makes vLLM register the same memory with NCCL"


def _fuse_norms(group: str, takeover: Takeover) -> None:
    """Add the fusion of norms to vLLM's compilation, unless vLLM's modules lack what it needs."""
    try:
        from symmem.engines import vllm_norm
    except (ImportError, AttributeError) as e:
        logger.warning("symmem leaves fused norms to vLLM: %s", e)
        return
    vllm_norm.install(group, takeover)


def _leading(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    """Move a dimension to the front, avoiding a view if it is already there."""
    return tensor.movedim(dim, 0) if dim else tensor


class SymmemCommunicator:
    """Runs collectives on symmem, or calls the base class if symmem has no faster path.

    Attributes:
        takeover: decides which calls symmem runs.
    """

    world_size: int
    rank_in_group: int
    device: Any
    device_group: Any
    unique_name: str

    def __init__(self, *arguments: Any, **named: Any):
        super().__init__(*arguments, **named)
        self.takeover = take_over(
            f"vLLM {self.unique_name}", self.device_group, self.device, _refusals(self)
        )
        if self.takeover.group is not None and self.unique_name.startswith("tp"):
            _fuse_norms(self.unique_name, self.takeover)
        if self.rank_in_group == 0:
            report(logger, "vLLM", self.unique_name, self.takeover, CALLS)

    def all_reduce(self, input_: torch.Tensor) -> torch.Tensor:
        """Sum a tensor over all ranks into a new one."""
        result = rows.all_reduce(self.takeover, input_)
        return super().all_reduce(input_) if result is None else result  # type: ignore[misc]

    def all_gather(self, input_: torch.Tensor, dim: int = -1) -> torch.Tensor:
        """Gather a tensor of each rank along a dimension."""
        result = rows.all_gather(self.takeover, input_, dim)
        return super().all_gather(input_, dim) if result is None else result  # type: ignore[misc]

    def all_gatherv(
        self,
        input_: torch.Tensor | list[torch.Tensor],
        dim: int = 0,
        sizes: list[int] | None = None,
    ) -> torch.Tensor | list[torch.Tensor]:
        """Gather rows of one or more tensors. The number of rows may differ between ranks."""
        tensors = input_ if isinstance(input_, list) else [input_]
        result = rows.all_gather_rows(self.takeover, tensors, sizes) if dim == 0 else None
        if result is None:
            return super().all_gatherv(input_, dim, sizes)  # type: ignore[misc,no-any-return]
        return result if isinstance(input_, list) else result[0]

    def reduce_scatter(self, input_: torch.Tensor, dim: int = -1) -> torch.Tensor:
        """Sum a tensor over all ranks, and return this rank's part along a dimension."""
        dim %= input_.dim()
        result = rows.reduce_scatter_rows(self.takeover, _leading(input_, dim), None)
        if result is None:
            return super().reduce_scatter(input_, dim)  # type: ignore[misc,no-any-return]
        return result.movedim(0, dim).contiguous()

    def reduce_scatterv(
        self, input_: torch.Tensor, dim: int = -1, sizes: list[int] | None = None
    ) -> torch.Tensor:
        """Sum rows over all ranks, and return this rank's part. The parts may differ in size."""
        dim %= input_.dim()
        result = rows.reduce_scatter_rows(self.takeover, _leading(input_, dim), sizes)
        if result is None:
            return super().reduce_scatterv(input_, dim, sizes)  # type: ignore[misc,no-any-return]
        return result.movedim(0, dim).contiguous()

    def reduce_scatterv_into_output(
        self,
        input_: torch.Tensor,
        output: torch.Tensor,
        dim: int = -1,
        sizes: list[int] | None = None,
    ) -> torch.Tensor:
        """Do the same as `reduce_scatterv`, but store the part in the output."""
        result = None
        if dim % input_.dim() == 0:
            result = rows.reduce_scatter_rows(self.takeover, input_, sizes, output)
        if result is None:
            base: Any = super()
            theirs: torch.Tensor = base.reduce_scatterv_into_output(input_, output, dim, sizes)
            return theirs
        return result

    def get_symmetric_memory_buffer(
        self, role: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor | None:
        """Return a symmetric tensor for the input of a reduce-scatter, or None."""
        scratch = self.takeover.scratch
        if scratch is None:
            base: Any = super()
            result: torch.Tensor | None = base.get_symmetric_memory_buffer(
                role, shape, dtype, device
            )
            return result
        from vllm.v1.worker.ubatching import dbo_current_ubatch_id

        return scratch.tensor((role, dbo_current_ubatch_id()), tuple(shape), dtype)

    def broadcast(self, tensor: torch.Tensor, src: int = 0) -> torch.Tensor:
        """Copy one rank's tensor to all ranks."""
        takeover = self.takeover
        if not takeover.takes("broadcast", tensor, tensor):
            return super().broadcast(tensor, src)  # type: ignore[misc,no-any-return]
        collectives.broadcast(tensor, group=takeover.group_argument(), group_src=src)
        return tensor

    def send(self, tensor: torch.Tensor, dst: int | None = None) -> None:
        """Send a tensor to a rank of the group; the default is the next rank."""
        takeover = self.takeover
        if not takeover.takes("send", tensor, tensor):
            super().send(tensor, dst)  # type: ignore[misc]
            return
        peer = (self.rank_in_group + 1) % self.world_size if dst is None else dst
        messages.send(tensor, group=takeover.group, group_dst=peer)

    def recv(self, size: torch.Size, dtype: torch.dtype, src: int | None = None) -> torch.Tensor:
        """Receive a tensor from a rank of the group; the default is the previous rank."""
        takeover = self.takeover
        if not takeover.receives(dtype):
            return super().recv(size, dtype, src)  # type: ignore[misc,no-any-return]
        import torch

        tensor = torch.empty(size, dtype=dtype, device=self.device)
        peer = (self.rank_in_group - 1) % self.world_size if src is None else src
        messages.recv(tensor, group=takeover.group, group_src=peer)
        return tensor

    def suspend(self) -> None:
        """Release GPU memory while vLLM sleeps. If that is impossible, symmem keeps its memory."""
        try:
            self.takeover.suspend("sleep")
        except errors.BusyError as e:  # all ranks get the error
            logger.warning("symmem keeps the memory of group %s: %s", self.unique_name, e)
        super().suspend()  # type: ignore[misc]

    def resume(self) -> None:
        """Allocate again the memory that `suspend` released."""
        super().resume()  # type: ignore[misc]
        self.takeover.resume("sleep")

    def checkpoint_prepare(self) -> None:
        """Release GPU memory before a checkpoint of the process."""
        self.takeover.suspend("checkpoint")
        super().checkpoint_prepare()  # type: ignore[misc]

    def checkpoint_restore(self) -> None:
        """Allocate again the memory that `checkpoint_prepare` released."""
        super().checkpoint_restore()  # type: ignore[misc]
        self.takeover.resume("checkpoint")

    def destroy(self) -> None:
        """Close symmem's group and destroy the communicator."""
        self.takeover.close()
        super().destroy()  # type: ignore[misc]
