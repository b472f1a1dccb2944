"""Collectives on tensors, with the arguments of `torch.distributed`."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from symmem import _runtime, errors
from symmem._constants import Operation, Path
from symmem._scope import set_site
from symmem._torch import pytorch
from symmem._work import HostWork, SideStream, Work

if TYPE_CHECKING:
    import torch

    from symmem._group import Group
    from symmem._runtime import Runtime

_AUTO = int(Path.DEFAULT)


def find(group: Any) -> Group:
    """Find the group of a call; None is the world."""
    runtime = _runtime._runtime
    if group is None and runtime is not None and not runtime.forked:
        return runtime.world
    return _runtime.current().group(group)


def _flat(group: Group, name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Check that a tensor's elements lie side by side on the rank's device."""
    if tensor.is_complex():
        tensor = pytorch().module.view_as_real(tensor)
    if not tensor.is_contiguous():
        raise errors.InvalidError(f"{name} is not contiguous: pass {name}.contiguous()")
    device = group.runtime.device
    # get_device is -1 for the processor's tensors, and cheap.
    if tensor.get_device() != (-1 if device is None else device):
        ours = "the host" if device is None else f"cuda:{device}"
        raise errors.InvalidError(f"{name} is on {tensor.device}, symmem was opened on {ours}")
    return tensor


class Call:
    """One collective on its way: where it runs, and what becomes of it."""

    __slots__ = ("_asynchronous", "_output", "_runtime", "_side", "_tensors", "group", "stream")

    def __init__(self, group: Group, tensors: tuple[Any, ...], output: list[Any], async_op: bool):
        runtime = group.runtime
        self.group = group
        self._runtime: Runtime = runtime
        self._tensors = tensors
        self._output = output
        self._asynchronous = async_op
        self._side: SideStream | None = None
        self.stream = runtime.stream()
        if async_op and runtime.device is not None:
            self._side = runtime.side_stream(group)
            self._side.fork()
            self.stream = self._side.number

    def run(self, name: str, *arguments: Any) -> Work | None:
        """Queue the collective and finish as the caller wants."""
        runtime = self._runtime
        previous = set_site(runtime) if runtime.callsites else None
        try:
            runtime.library.call(name, self.group.handle, *arguments, self.stream)
        finally:
            if previous is not None:
                runtime.library.raw.symmem_set_site(previous)
        return self.finish()

    def as_current(self) -> AbstractContextManager[Any]:
        """Make PyTorch queue on the stream of the call."""
        if self._side is None:
            return nullcontext()
        stream: AbstractContextManager[Any] = pytorch().module.cuda.stream(self._side.stream)
        return stream

    def finish(self) -> Work | None:
        """Return the work, or wait for it on the host backend, whose tensors have no stream."""
        runtime = self._runtime
        if self._side is not None:
            return self._side.work(self._tensors, self._output)
        if self._asynchronous:
            return HostWork(runtime, self._tensors, self._output)
        if runtime.device is None:
            runtime.library.call("symmem_stream_synchronize", 0)
        return None


def all_reduce(
    tensor: torch.Tensor, op: Any = None, group: Any = None, async_op: bool = False
) -> Work | None:
    """Combine a tensor over all ranks, in place."""
    g = find(group)
    flat = _flat(g, "tensor", tensor)
    kind, reduction = pytorch().reduction(flat.dtype, op)
    address = flat.data_ptr()
    return Call(g, (tensor,), [tensor], async_op).run(
        "symmem_all_reduce", flat.numel(), kind, reduction, _AUTO, address, address
    )


def all_reduce_out(output: torch.Tensor, tensor: torch.Tensor, op: Any, group: Any) -> None:
    """Combine a tensor over all ranks into another one."""
    g = find(group)
    source, target = _flat(g, "input", tensor), _flat(g, "output", output)
    _same(source, target)
    _sized("output", target, source.numel())
    kind, reduction = pytorch().reduction(source.dtype, op)
    Call(g, (tensor, output), [output], False).run(
        "symmem_all_reduce",
        source.numel(),
        kind,
        reduction,
        _AUTO,
        source.data_ptr(),
        target.data_ptr(),
    )


def all_reduce_rms_norm(
    tensor: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    group: Any = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Combine rows, add them to a residual and normalize it, in two kernels."""
    g = find(group)
    output = pytorch().module.empty_like(tensor) if out is None else out
    named = {"tensor": tensor, "residual": residual, "weight": weight, "out": output}
    bfloat16 = pytorch().module.bfloat16
    for name, each in named.items():
        if _flat(g, name, each).dtype is not bfloat16:
            raise errors.InvalidError(f"{name} is of {each.dtype}: only bfloat16 can be normalized")
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
    Call(g, (tensor, residual, weight, output), [output], False).run(
        "symmem_all_reduce_rms_norm",
        tensor.numel() // max(hidden, 1),
        hidden,
        eps,
        tensor.data_ptr(),
        residual.data_ptr(),
        weight.data_ptr(),
        output.data_ptr(),
    )
    return output


def all_gather_into_tensor(
    output: torch.Tensor, tensor: torch.Tensor, group: Any = None, async_op: bool = False
) -> Work | None:
    """Gather a tensor of each rank into one."""
    g = find(group)
    source, target = _flat(g, "input", tensor), _flat(g, "output", output)
    _same(source, target)
    count = source.numel()
    _sized("output", target, count * g.size)
    return Call(g, (tensor, output), [output], async_op).run(
        "symmem_all_gather",
        count,
        pytorch().element(source.dtype),
        _AUTO,
        source.data_ptr(),
        target.data_ptr(),
    )


def reduce_scatter_tensor(
    output: torch.Tensor,
    tensor: torch.Tensor,
    op: Any = None,
    group: Any = None,
    async_op: bool = False,
) -> Work | None:
    """Combine a tensor over all ranks and keep this rank's part."""
    g = find(group)
    source, target = _flat(g, "input", tensor), _flat(g, "output", output)
    _same(source, target)
    count = target.numel()
    _sized("input", source, count * g.size)
    kind, reduction = pytorch().reduction(source.dtype, op)
    return Call(g, (tensor, output), [output], async_op).run(
        "symmem_reduce_scatter",
        count,
        kind,
        reduction,
        _AUTO,
        source.data_ptr(),
        target.data_ptr(),
    )


def broadcast(
    tensor: torch.Tensor,
    src: int | None = None,
    group: Any = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Work | None:
    """Copy a tensor of one rank to all."""
    g = find(group)
    root = g.runtime.root(g, src, group_src)
    flat = _flat(g, "tensor", tensor)
    address = flat.data_ptr()
    return Call(g, (tensor,), [tensor], async_op).run(
        "symmem_broadcast",
        flat.numel(),
        pytorch().element(flat.dtype),
        root,
        _AUTO,
        address,
        address,
    )


def all_to_all_single(
    output: torch.Tensor,
    tensor: torch.Tensor,
    output_split_sizes: list[int] | None = None,
    input_split_sizes: list[int] | None = None,
    group: Any = None,
    async_op: bool = False,
) -> Work | None:
    """Send a part of a tensor to each rank, and gather the parts of all."""
    g = find(group)
    source, target = _flat(g, "input", tensor), _flat(g, "output", output)
    _same(source, target)
    call = Call(g, (tensor, output), [output], async_op)
    if _uneven(g, output, output_split_sizes) or _uneven(g, tensor, input_split_sizes):
        _exchange(call, target, source, output_split_sizes, input_split_sizes)
        return call.finish()
    if source.numel() % g.size:
        raise errors.InvalidError(f"{source.numel()} elements cannot be split for {g.size} ranks")
    _sized("output", target, source.numel())
    return call.run(
        "symmem_all_to_all",
        source.numel() // g.size,
        pytorch().element(source.dtype),
        _AUTO,
        source.data_ptr(),
        target.data_ptr(),
    )


def barrier(group: Any = None) -> None:
    """Wait on the current stream until all ranks have come; on the host backend, here."""
    Call(find(group), (), [], False).run("symmem_barrier")


def _same(source: torch.Tensor, target: torch.Tensor) -> None:
    if source.dtype is not target.dtype:
        raise errors.InvalidError(f"input is of {source.dtype}, output of {target.dtype}")


def _sized(name: str, tensor: torch.Tensor, want: int) -> None:
    if tensor.numel() != want:
        raise errors.InvalidError(f"{name} has {tensor.numel()} elements, {want} are needed")


def _uneven(group: Group, tensor: torch.Tensor, splits: list[int] | None) -> bool:
    """Tell whether the parts of a tensor, which are counted in rows, differ; check their sum."""
    if not splits:
        return False
    rows = tensor.shape[0] if tensor.dim() else 0
    if len(splits) != group.size or sum(splits) != rows or min(splits) < 0:
        raise errors.InvalidError(f"{splits} does not split {rows} rows for {group.size} ranks")
    return len(set(splits)) > 1


def _exchange(
    call: Call,
    target: torch.Tensor,
    source: torch.Tensor,
    output_split_sizes: list[int] | None,
    input_split_sizes: list[int] | None,
) -> None:
    """Exchange parts of different lengths by messages, in rounds in which everybody sends once.

    Messages are asynchronous and are not compared between ranks, since lengths may differ.
    """
    group = call.group
    sends = _parts(group, source, input_split_sizes)
    receives = _parts(group, target, output_split_sizes)
    me, size = group.rank, group.size
    kind = int(pytorch().element(source.dtype))
    width = source.element_size()

    def message(operation: Operation, peer: int, address: int, count: int) -> None:
        send, recv = (address, 0) if operation is Operation.SEND else (0, address)
        group.library.call(
            "symmem_collective",
            group.handle,
            operation,
            count,
            kind,
            0,
            peer,
            _AUTO,
            send or None,
            recv or None,
            call.stream,
        )

    for away in range(1, size):
        to, start = (me + away) % size, sends[(me + away) % size]
        if start[1]:
            message(Operation.SEND, to, source.data_ptr() + start[0] * width, start[1])
    for away in range(1, size):
        peer, place = (me - away) % size, receives[(me - away) % size]
        if place[1]:
            message(Operation.RECV, peer, target.data_ptr() + place[0] * width, place[1])
    _keep(call, target, source, receives[me], sends[me])


def _parts(group: Group, tensor: torch.Tensor, splits: list[int] | None) -> list[tuple[int, int]]:
    """Turn parts in rows into (first element, elements)."""
    if not splits:
        each = tensor.numel() // group.size
        return [(r * each, each) for r in range(group.size)]
    row = tensor.numel() // max(tensor.shape[0], 1)
    starts = [sum(splits[:r]) * row for r in range(group.size)]
    return [(s, n * row) for s, n in zip(starts, splits, strict=True)]


def _keep(
    call: Call,
    target: torch.Tensor,
    source: torch.Tensor,
    into: tuple[int, int],
    part: tuple[int, int],
) -> None:
    """Copy the part that a rank sends to itself, on the stream of the call."""
    if into[1] != part[1]:
        raise errors.InvalidError(f"this rank sends itself {part[1]} elements, expects {into[1]}")
    out = target.view(-1)[into[0] : into[0] + into[1]]
    inside = source.view(-1)[part[0] : part[0] + part[1]]
    with call.as_current():
        out.copy_(inside)
