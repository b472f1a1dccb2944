"""Operations of torch.distributed on GPUs. They run with any process group and return a result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from common import DEVICE, RANK, SIZE

EVERY = list(range(SIZE))

Group = Any
Tensor = torch.Tensor


def numbers(*shape: int, rank: int = RANK, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return small numbers that differ between ranks and elements and have exact sums."""
    count = torch.Size(shape).numel()
    return (torch.arange(count, device=DEVICE) % 13 + rank).to(dtype).view(shape)


def out(*shape: int) -> Tensor:
    """Return a tensor for the output of an operation."""
    return torch.full(shape, -1.0, device=DEVICE)


def all_reduce(group: Group, n: int, op: Any = dist.ReduceOp.SUM) -> Tensor:
    """Sum in place."""
    x = numbers(n)
    dist.all_reduce(x, op, group)
    return x


def strided(group: Group, n: int) -> Tensor:
    """Sum a strided tensor."""
    x = numbers(n, 2).t()
    dist.all_reduce(x, group=group)
    return x.contiguous()


def all_reduce_of_copy(group: Group, n: int) -> Tensor:
    """Sum a contiguous copy of the tensor in `strided`."""
    x = numbers(n, 2).t().contiguous()
    dist.all_reduce(x, group=group)
    return x


def premultiplied(group: Group, n: int) -> Tensor:
    """Sum with a factor."""
    return all_reduce(group, n, dist._make_nccl_premul_sum(0.5))


def coalesced(group: Group, n: int) -> Tensor:
    """Sum several tensors and gather several in a coalescing manager."""
    xs = [numbers(n), numbers(n + 3)]
    dist.all_reduce_coalesced(xs, group=group)
    outputs = [out(SIZE * n), out(SIZE * 2 * n)]
    with dist._coalescing_manager(group, DEVICE):
        for i, output in enumerate(outputs):
            dist.all_gather_into_tensor(output, numbers((i + 1) * n), group=group)
    return torch.cat(xs + outputs)


def reduce_to_root(group: Group, n: int) -> Tensor:
    """Sum on one rank. The results on the other ranks are undefined."""
    x = numbers(n)
    dist.reduce(x, SIZE - 1, group=group)
    return x if RANK == SIZE - 1 else x * 0


def broadcast(group: Group, n: int) -> Tensor:
    """Broadcast the last rank's tensor."""
    x = numbers(n)
    dist.broadcast(x, SIZE - 1, group=group)
    return x


def all_gather_list(group: Group, n: int) -> Tensor:
    """Gather into a list."""
    outputs = [out(n) for _ in EVERY]
    dist.all_gather(outputs, numbers(n), group=group)
    return torch.cat(outputs)


def all_gather_uneven(group: Group, n: int) -> Tensor:
    """Gather into a list of different sizes."""
    outputs = [out(n + rank) for rank in EVERY]
    dist.all_gather(outputs, numbers(n + RANK), group=group)
    return torch.cat(outputs)


def all_gather_into(group: Group, n: int) -> Tensor:
    """Gather into one tensor."""
    output = out(SIZE * n)
    dist.all_gather_into_tensor(output, numbers(n), group=group)
    return output


def reduce_scatter(group: Group, n: int) -> Tensor:
    """Sum, and return this rank's part."""
    output = out(n)
    dist.reduce_scatter_tensor(output, numbers(SIZE * n), group=group)
    return output


def reduce_scatter_uneven(group: Group, n: int) -> Tensor:
    """Sum a list of tensors of different sizes, and return this rank's tensor."""
    output = out(n + RANK)
    dist.reduce_scatter(output, [numbers(n + rank) for rank in EVERY], group=group)
    return output


def all_to_all(group: Group, n: int) -> Tensor:
    """Exchange equal parts."""
    output = out(SIZE * n)
    dist.all_to_all_single(output, numbers(SIZE * n), group=group)
    return output


def all_to_all_uneven(group: Group, n: int) -> Tensor:
    """Exchange parts of different sizes."""
    sent = [n + (RANK + peer) % 3 for peer in EVERY]
    output = out(sum(sent))
    dist.all_to_all_single(output, numbers(sum(sent)), sent, sent, group=group)
    return output


def all_to_all_lists(group: Group, n: int) -> Tensor:
    """Exchange lists."""
    outputs = [out(n) for _ in EVERY]
    dist.all_to_all(outputs, [numbers(n) + peer for peer in EVERY], group=group)
    return torch.cat(outputs)


def gather_and_scatter(group: Group, n: int) -> Tensor:
    """Gather on rank 0 and scatter the result."""
    parts = [out(n) for _ in EVERY] if RANK == 0 else None
    dist.gather(numbers(n), parts, 0, group=group)
    output = out(n)
    dist.scatter(output, parts, 0, group=group)
    return output


def messages(group: Group, n: int) -> Tensor:
    """Send around the ring, in a batch and one by one."""
    right, left = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    got, again = out(n), out(n)
    batch = [
        dist.P2POp(dist.isend, numbers(n), right, group),
        dist.P2POp(dist.irecv, got, left, group),
    ]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    if RANK % 2 == 0:
        dist.send(got, right, group=group)
        dist.recv(again, left, group=group)
    else:
        dist.recv(again, left, group=group)
        dist.send(got, right, group=group)
    return torch.cat([got, again])


def asynchronous(group: Group, n: int) -> Tensor:
    """Start several operations and wait for them in another order."""
    xs = [numbers(n) + i for i in range(4)]
    works = [dist.all_reduce(x, group=group, async_op=True) for x in xs]
    for work in reversed(works):
        work.wait()
    return torch.cat(xs)


def futures(group: Group, n: int) -> Tensor:
    """Continue in a callback."""
    work = dist.all_reduce(numbers(n), group=group, async_op=True)
    found: Tensor = work.get_future().then(lambda f: f.value()[0] * 2).wait()
    return found


def barriers(group: Group, n: int) -> Tensor:
    """Wait for all ranks, with a device and without."""
    dist.barrier(group)
    dist.barrier(group, device_ids=[DEVICE.index])
    dist.barrier(group, async_op=True).wait()
    return numbers(n)


OPERATIONS: tuple[Callable[[Group, int], Tensor], ...] = (
    all_reduce,
    strided,
    premultiplied,
    coalesced,
    reduce_to_root,
    broadcast,
    all_gather_list,
    all_gather_uneven,
    all_gather_into,
    reduce_scatter,
    reduce_scatter_uneven,
    all_to_all,
    all_to_all_uneven,
    all_to_all_lists,
    gather_and_scatter,
    messages,
    asynchronous,
    futures,
    barriers,
)

CAPTURED = (all_reduce, broadcast, all_gather_into, reduce_scatter, all_to_all, asynchronous)
