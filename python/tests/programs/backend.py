"""Compares results of the backend "symmem" of torch.distributed with expected values."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from expected import WORLD, numbers, total
from harness import RANK, SIZE, check, main, raises

import symmem
from symmem._rank.rendezvous import free_port


@check
def default_group_opens() -> None:
    dist.init_process_group("symmem", timeout=timedelta(seconds=200))
    assert dist.get_backend() == "symmem"
    assert (dist.get_rank(), dist.get_world_size()) == (RANK, SIZE)
    assert symmem.is_initialized()


@check
def functions_of_symmem_can_be_compiled() -> None:
    compiled = torch.compile(symmem.functional.all_reduce, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(numbers(RANK, 5)), total(5))


@check
def all_reduce() -> None:
    types = torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.int16, torch.uint8
    for dtype in types:
        for shape in ((), (1,), (3, 5), (1000, 77), (0,)):
            for async_op in (False, True):
                tensor = numbers(RANK, *shape, dtype=dtype)
                work = dist.all_reduce(tensor, async_op=async_op)
                if async_op:
                    assert work.wait()
                    assert work.is_completed()
                torch.testing.assert_close(tensor, total(*shape, dtype=dtype))


@check
def all_reduce_supports_each_kind() -> None:
    ranks = torch.stack([numbers(r, 7, dtype=torch.int32) for r in WORLD])
    kinds: dict[Any, torch.Tensor] = {
        dist.ReduceOp.SUM: ranks.sum(0),
        dist.ReduceOp.PRODUCT: ranks.prod(0),
        dist.ReduceOp.MIN: ranks.amin(0),
        dist.ReduceOp.MAX: ranks.amax(0),
    }
    for op, want in kinds.items():
        tensor = numbers(RANK, 7, dtype=torch.int32)
        dist.all_reduce(tensor, op)
        torch.testing.assert_close(tensor, want.to(torch.int32))
    tensor = numbers(RANK, 7)
    dist.all_reduce(tensor, dist.ReduceOp.AVG)
    torch.testing.assert_close(tensor, total(7) / SIZE)
    tensor = numbers(RANK, 7)
    dist.all_reduce(tensor, dist._make_nccl_premul_sum(0.5))
    torch.testing.assert_close(tensor, total(7) / 2)
    bits = torch.tensor([1 << RANK | 1, 6], dtype=torch.int64)
    for op, want in ((dist.ReduceOp.BOR, [2**SIZE - 1, 6]), (dist.ReduceOp.BAND, [1, 6])):
        tensor = bits.clone()
        dist.all_reduce(tensor, op)
        assert tensor.tolist() == want


@check
def all_reduce_of_bools_is_logical() -> None:
    tensor = torch.tensor([RANK == 0, True, False])
    dist.all_reduce(tensor)
    assert tensor.tolist() == [True, True, False]
    tensor = torch.tensor([RANK == 0, True, False])
    dist.all_reduce(tensor, dist.ReduceOp.PRODUCT)
    assert tensor.tolist() == [False, True, False]


@check
def all_reduce_supports_strided_and_complex_tensors() -> None:
    whole = numbers(RANK, 6, 4)
    dist.all_reduce(whole[:, ::2])
    torch.testing.assert_close(whole[:, ::2], total(6, 4)[:, ::2])
    torch.testing.assert_close(whole[:, 1::2], numbers(RANK, 6, 4)[:, 1::2])
    values = torch.complex(numbers(RANK, 5), -numbers(RANK, 5))
    dist.all_reduce(values)
    torch.testing.assert_close(values, torch.complex(total(5), -total(5)))


@check
def parameters_and_inference_tensors_may_be_strided() -> None:
    for async_op in (False, True):
        parameter = torch.nn.Parameter(numbers(RANK, 4, 3).t())
        with torch.inference_mode():
            inferred = numbers(RANK, 4, 3).t()
        for tensor in (parameter, inferred):
            for work in (
                dist.all_reduce(tensor, async_op=async_op),
                dist.broadcast(tensor, 0, async_op=async_op),
            ):
                if work:
                    work.wait()
            torch.testing.assert_close(tensor.detach(), total(4, 3).t())


@check
def works_of_all_reduce_run_in_order() -> None:
    tensors = [numbers(RANK, 100 * i) for i in range(1, 40)]
    works = [dist.all_reduce(t, async_op=True) for t in tensors]
    last = numbers(RANK, 10)
    dist.all_reduce(last)
    assert all(w.is_completed() for w in works)
    for work, tensor in zip(works, tensors, strict=True):
        work.wait()
        torch.testing.assert_close(tensor, total(tensor.numel()))


@check
def future_callbacks_may_call_collectives() -> None:
    def again(future: Any) -> torch.Tensor:
        tensor = future.value()[0]
        dist.all_reduce(tensor)
        dist.all_reduce(tensor, async_op=True).wait()
        return tensor

    future = dist.all_reduce(numbers(RANK, 9), async_op=True).get_future().then(again)
    torch.testing.assert_close(future.wait(), total(9) * SIZE * SIZE)


@check
def broadcast_and_reduce() -> None:
    for root in WORLD:
        tensor = numbers(RANK, 300)
        dist.broadcast(tensor, root)
        torch.testing.assert_close(tensor, numbers(root, 300))
        tensor = numbers(RANK, 300)
        dist.reduce(tensor, root)
        want = total(300) if root == RANK else numbers(RANK, 300)
        torch.testing.assert_close(tensor, want)


@check
def all_gather() -> None:
    want = [numbers(r, 4, 3) for r in WORLD]
    outputs = [torch.empty(4, 3) for _ in WORLD]
    dist.all_gather(outputs, numbers(RANK, 4, 3))
    torch.testing.assert_close(outputs, want)
    whole = torch.empty(SIZE, 4, 3)
    dist.all_gather(list(whole.unbind()), numbers(RANK, 4, 3))
    torch.testing.assert_close(whole, torch.stack(want))
    whole = torch.empty(4 * SIZE, 3)
    dist.all_gather_into_tensor(whole, numbers(RANK, 4, 3))
    torch.testing.assert_close(whole, torch.cat(want))


@check
def all_gather_of_different_sizes() -> None:
    outputs = [torch.empty(r + 1, 2) for r in WORLD]
    dist.all_gather(outputs, numbers(RANK, RANK + 1, 2))
    torch.testing.assert_close(outputs, [numbers(r, r + 1, 2) for r in WORLD])
    for dtype in (torch.bool, torch.complex64, torch.float8_e5m2, torch.int16):
        outputs = [torch.zeros(r, 3).to(dtype) for r in WORLD]  # rank 0 has no rows
        dist.all_gather(outputs, numbers(RANK, RANK, 3).to(dtype))
        for r, output in enumerate(outputs):
            want = numbers(r, r, 3).to(dtype)
            assert output.view(torch.uint8).equal(want.view(torch.uint8))


@check
def reduce_scatter() -> None:
    want = total(SIZE, 5)[RANK]
    output = torch.empty(5)
    dist.reduce_scatter(output, list(numbers(RANK, SIZE, 5).unbind()))
    torch.testing.assert_close(output, want)
    dist.reduce_scatter(output, [row.clone() for row in numbers(RANK, SIZE, 5)])
    torch.testing.assert_close(output, want)
    dist.reduce_scatter_tensor(output, numbers(RANK, SIZE, 5))
    torch.testing.assert_close(output, want)
    for dtype in (torch.float32, torch.complex64, torch.int16):
        inputs = [numbers(RANK, r, 2, dtype=dtype).t() for r in WORLD]
        output = torch.empty(2, RANK, dtype=dtype)
        dist.reduce_scatter(output, inputs)
        torch.testing.assert_close(output, total(RANK, 2, dtype=dtype).t())


@check
def gather_and_scatter() -> None:
    for root in WORLD:
        outputs = [torch.empty(3) for _ in WORLD] if root == RANK else None
        dist.gather(numbers(RANK, 3), outputs, root)
        if outputs is not None:
            torch.testing.assert_close(outputs, [numbers(r, 3) for r in WORLD])
        inputs = [numbers(r + root, 4) for r in WORLD] if root == RANK else None
        output = torch.empty(4)
        dist.scatter(output, inputs, root)
        torch.testing.assert_close(output, numbers(RANK + root, 4))


@check
def all_to_all() -> None:
    output = torch.empty(2 * SIZE, 3)
    dist.all_to_all_single(output, numbers(RANK, 2 * SIZE, 3))
    want = [numbers(r, 2 * SIZE, 3)[2 * RANK : 2 * RANK + 2] for r in WORLD]
    torch.testing.assert_close(output, torch.cat(want))
    sent = [r + 1 for r in WORLD]
    output = torch.empty(SIZE * (RANK + 1), 3)
    dist.all_to_all_single(output, numbers(RANK, sum(sent), 3), [RANK + 1] * SIZE, sent)
    first = RANK * (RANK + 1) // 2
    want = [numbers(r, sum(sent), 3)[first : first + RANK + 1] for r in WORLD]
    torch.testing.assert_close(output, torch.cat(want))
    outputs = [torch.empty(RANK + 1, 3) for _ in WORLD]
    dist.all_to_all(outputs, list(numbers(RANK, sum(sent), 3).split(sent)))
    torch.testing.assert_close(outputs, want)


@check
def messages() -> None:
    right, left = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    for count in (1, 10, 1 << 20):
        got = torch.empty(count)
        works = [dist.irecv(got, left, tag=3), dist.isend(numbers(RANK, count), right, tag=3)]
        for work in works:
            work.wait()
        assert all(w.is_completed() for w in works)
        torch.testing.assert_close(got, numbers(left, count))
    if RANK == 0:
        senders = []
        for _ in range(1, SIZE):
            got = torch.empty(5)
            senders.append(dist.recv(got))
            torch.testing.assert_close(got, numbers(senders[-1], 5))
        assert sorted(senders) == list(range(1, SIZE))
    else:
        dist.send(numbers(RANK, 5), 0)


@check
def lists() -> None:
    tensors = [numbers(RANK, n) for n in (1, 20, 300)]
    dist.all_reduce_coalesced(tensors)
    torch.testing.assert_close(tensors, [total(n) for n in (1, 20, 300)])
    gaps = [numbers(RANK, 4, 3).t(), numbers(RANK, 0), numbers(RANK, 7)]
    for async_op in (False, True):
        tensors = [t.clone() for t in gaps]
        if work := dist.all_reduce_coalesced(tensors, async_op=async_op):
            work.wait()
        torch.testing.assert_close(tensors, [total(4, 3).t(), total(0), total(7)])
    outputs = [torch.empty(5), torch.empty(2, dtype=torch.int64)]
    with dist._coalescing_manager():
        for output, dtype in zip(outputs, (torch.float32, torch.int64), strict=True):
            given = numbers(RANK, SIZE * output.numel(), dtype=dtype)
            dist.reduce_scatter_tensor(output, given)
    want = [total(SIZE, 5)[RANK], total(SIZE, 2, dtype=torch.int64)[RANK]]
    torch.testing.assert_close(outputs, want)
    with dist._coalescing_manager():
        outputs = [torch.empty(n * SIZE) for n in (2, 9)]
        for n, output in zip((2, 9), outputs, strict=True):
            dist.all_gather_into_tensor(output, numbers(RANK, n))
    want = [torch.cat([numbers(r, n) for r in WORLD]) for n in (2, 9)]
    torch.testing.assert_close(outputs, want)


@check
def objects_and_barrier() -> None:
    found: list[Any] = [None] * SIZE
    dist.all_gather_object(found, {"rank": RANK})
    assert found == [{"rank": r} for r in WORLD]
    box = ["x" * 1000 if RANK == 1 else None]
    dist.broadcast_object_list(box, 1)
    assert box == ["x" * 1000]
    dist.barrier()
    assert dist.barrier(async_op=True).wait()


@check
def groups_of_some_ranks() -> None:
    pair = dist.new_group([0, 1], backend="symmem")
    last = dist.new_group([SIZE - 1, 0], backend="symmem")
    for group, ranks in ((pair, [0, 1]), (last, sorted([SIZE - 1, 0]))):
        if RANK in ranks:
            tensor = numbers(RANK, 50)
            dist.all_reduce(tensor, group=group)
            torch.testing.assert_close(tensor, numbers(ranks[0], 50) + numbers(ranks[1], 50))
    if RANK in (0, 1):
        dist.destroy_process_group(pair)
    mesh = dist.init_device_mesh("cpu", (SIZE,))
    tensor = numbers(RANK, 50)
    dist.all_reduce(tensor, group=mesh.get_group())
    torch.testing.assert_close(tensor, total(50))


@check
def tensors_in_symmetric_memory() -> None:
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    assert backend.supports_tensor_alloc(torch.device("cpu"))
    for step in range(20):
        tensor = backend.allocate_tensor(1000, dtype=torch.float32, device=torch.device("cpu"))
        assert symmem.is_symmetric(tensor) == (step > 0)
        tensor.copy_(numbers(RANK, 1000))
        works = [dist.all_reduce(tensor, async_op=True)]
        works[0].wait()
        torch.testing.assert_close(tensor, total(1000))
        again = backend.allocate_tensor(50, dtype=torch.int64, device=torch.device("cpu"))
        again.fill_(1)
        dist.all_reduce(again)
        del tensor, works, again
    symmem.check()


@check
def lists_may_be_anywhere_in_memory() -> None:
    count = 1 << 19
    want = numbers(RANK, count)
    for root in WORLD:
        separate = [numbers(r, count) for r in WORLD]
        adjacent = list(torch.cat(separate).split(count))
        strided = [t.repeat_interleave(2)[::2] for t in separate]
        with symmem.use():
            symmetric = [symmem.empty(count).copy_(t) for t in separate]
        # Names must refer to the same symmetric tensors on all ranks, which free them together.
        mixed = [*symmetric[:1], *separate[1:]]
        on_rank_0 = (separate, symmetric)
        for parts in (separate, adjacent, strided, on_rank_0[RANK == 0], symmetric, mixed):
            output = torch.empty(count, 2)[:, 0] if parts is strided else torch.empty(count)
            dist.scatter(output, parts if root == RANK else None, root)
            torch.testing.assert_close(output, want)
            outputs = [torch.empty(count) for _ in WORLD]
            dist.all_to_all(outputs, parts)
            torch.testing.assert_close(outputs, [want] * SIZE)
            dist.all_to_all(list(torch.empty(SIZE, count).unbind()), parts)


@check
def lists_are_gathered_and_reduced_anywhere_in_memory() -> None:
    count = 1 << 19
    given = [numbers(r, count) for r in WORLD]
    summed = total(count) + SIZE * RANK
    with symmem.use():
        symmetric = [symmem.empty(count) for _ in WORLD]
        views = list(symmem.empty(SIZE * count).view(SIZE, count).unbind())
        own = symmem.empty(count).copy_(given[RANK])
    between = list(torch.empty(SIZE + 1, count).unbind())
    input = between.pop(1).copy_(given[RANK])
    separate = [torch.empty(count) for _ in WORLD]
    strided = [torch.empty(count, 2)[:, 0] for _ in WORLD]
    uneven = [torch.empty(count * 2)[: count * 2 - r] for r in WORLD]
    mixed = [*symmetric[:1], *separate[1:]]
    on_rank_0 = (separate, symmetric)
    for parts in (separate, strided, on_rank_0[RANK == 0], symmetric, views, between, mixed):
        for one in (input, own, own if RANK == 0 else input, input.repeat_interleave(2)[::2]):
            dist.all_gather(parts, one)
            torch.testing.assert_close(parts, given)
            for root in WORLD:
                for part in parts:
                    part.fill_(0)
                dist.gather(one, parts if root == RANK else None, root)
                if root == RANK:
                    torch.testing.assert_close(parts, given)
            for rank, part in enumerate(parts):
                part.copy_(given[RANK] + rank)
            dist.reduce_scatter(one, parts)
            torch.testing.assert_close(one, summed)
            one.copy_(given[RANK])
    dist.all_gather(uneven, numbers(RANK, count * 2 - RANK))
    torch.testing.assert_close(uneven, [numbers(r, count * 2 - r) for r in WORLD])
    dist.all_gather(separate if RANK else views, input)
    torch.testing.assert_close(separate if RANK else views, given)


@check
def large_lists_may_be_scaled() -> None:
    parts, output = [numbers(RANK + r, 1 << 17) for r in WORLD], torch.empty(1 << 17)
    dist.reduce_scatter(output, parts, dist._make_nccl_premul_sum(2.0))
    torch.testing.assert_close(output, 2 * (total(1 << 17) + SIZE * RANK))


class Pool:
    """Fakes a MemPool, which PyTorch supports on GPUs only."""

    def __init__(self, address: int):
        self.address = address

    def snapshot(self) -> list[dict[str, int]]:
        return [{"address": self.address}]


@check
def memory_pools_can_be_registered() -> None:
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    foreign = Pool(torch.empty(10).data_ptr())
    with symmem.use():
        tensor = symmem.empty(80 << 20)
        assert not symmem.is_symmetric(tensor)
        backend.register_mem_pool(Pool(tensor.data_ptr()))
        assert symmem.is_symmetric(tensor)
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("symmem").addHandler(handler)
    for _ in range(2):
        backend.register_mem_pool(foreign, symm=True)
        backend.deregister_mem_pool(foreign)
    assert [line.split(":")[0] for line in lines] == ["register_mem_pool"], lines
    other = SimpleNamespace(name=lambda: "gloo")
    raises(AttributeError, lambda: type(backend).register_mem_pool(other, foreign))


@check
def cpu_memory_has_no_allocator() -> None:
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    assert "getMemAllocator" in str(raises(RuntimeError, lambda: backend.mem_allocator))


@check
def invalid_calls_raise_errors() -> None:
    sparse = raises(NotImplementedError, lambda: dist.all_reduce(numbers(RANK, 3).to_sparse()))
    assert "to_dense" in str(sparse)
    bits = raises(NotImplementedError, lambda: dist.all_reduce(torch.ones(3), dist.ReduceOp.BAND))
    assert "BAND of Float" in str(bits)
    one = torch.empty(3)
    parts = raises(ValueError, lambda: dist.all_gather_into_tensor(one, one))
    assert f"{SIZE} parts of 3" in str(parts)


def unfit(function: Callable[..., object], *arguments: object) -> None:
    """Expect an error that names sizes, before any rank waits for another."""
    error = raises(ValueError, partial(function, *arguments))
    assert "elements" in str(error) or "split size" in str(error), error


@check
def mismatched_sizes_are_errors() -> None:
    small, large = numbers(RANK, 4), numbers(RANK, 4 * SIZE)
    few, many = ([t.clone() for _ in WORLD] for t in (small, large))
    for part, parts in ((large, few), (small, many)):
        unfit(dist.reduce_scatter, part, parts)
        unfit(dist.all_gather_coalesced, [[p] for p in parts], [part])
        if RANK == 0:
            unfit(dist.gather, part, parts, 0)
            unfit(dist.scatter, part, parts, 0)
    unfit(dist.all_to_all_single, torch.empty(SIZE), large)
    splits = [4 * SIZE + 4, -4, *[0] * (SIZE - 2)]
    unfit(dist.all_to_all_single, large.clone(), large, splits, splits)
    torch.testing.assert_close(small, numbers(RANK, 4))
    torch.testing.assert_close(large, numbers(RANK, 4 * SIZE))


@check
def an_error_in_a_batch_does_not_affect_the_next() -> None:
    right, left = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    early, late = torch.empty(3), torch.empty(3)
    works = []
    manager = dist._coalescing_manager(device=torch.device("cpu"), async_ops=True)
    with suppress(ZeroDivisionError), manager:
        works.append(dist.irecv(late, left, tag=9))
        raise ZeroDivisionError
    batch = [
        dist.P2POp(dist.irecv, early, left),
        dist.P2POp(dist.isend, numbers(RANK, 3), right),
    ]
    for work in dist.batch_isend_irecv(batch):
        work.wait()  # must not wait for the message with tag 9, which is sent below
    dist.send(numbers(RANK + 1, 3), right, tag=9)
    works[0].wait()
    torch.testing.assert_close([early, late], [numbers(left, 3), numbers(left + 1, 3)])


@check
def group_can_be_destroyed_and_reopened() -> None:
    # The ranks need a new store, because rank 0 may still serve that of the first group.
    port = [free_port()]
    dist.broadcast_object_list(port, 0)
    os.environ["MASTER_PORT"] = str(port[0])
    dist.destroy_process_group()
    assert not symmem.is_initialized()
    dist.init_process_group("cpu:symmem", timeout=timedelta(seconds=200))
    tensor = numbers(RANK, 50)
    dist.all_reduce(tensor)
    torch.testing.assert_close(tensor, total(50))


@check
def mismatched_calls_raise_backend_errors() -> None:
    tensor = numbers(RANK, 50 + RANK)
    error = raises(dist.DistBackendError, lambda: dist.all_reduce(tensor))
    assert "50" in str(error)
    assert "51" in str(error)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
