"""Compares the arguments of collectives with those of torch.distributed with gloo."""

from __future__ import annotations

import random
import threading
import warnings
from collections.abc import Callable
from datetime import timedelta
from functools import partial, reduce
from typing import Any

import torch
import torch.distributed as dist
from formula import BITWISE
from harness import RANK, SIZE, check, main, raises

import symmem

LONGEST = 20.0


@check
def symmem_initializes() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=LONGEST))
    symmem.init(backend="host", timeout=LONGEST)


@check
def complex_numbers_support_only_sum_and_average() -> None:
    for dtype in (torch.complex64, torch.complex128):
        x = torch.full((5,), complex(RANK + 1, 1), dtype=dtype)
        symmem.all_reduce(y := x.clone())
        dist.all_reduce(x)
        assert y.equal(x)
        symmem.all_reduce(z := torch.full((5,), complex(RANK, SIZE), dtype=dtype), "avg")
        assert z.eq(complex((SIZE - 1) / 2, SIZE)).all()
        whole = torch.full((2 * SIZE,), 1j, dtype=dtype)
        for op in ("product", "min", "max", dist.ReduceOp.PRODUCT):
            before = y.clone()
            raises(ValueError, partial(symmem.all_reduce, y, op))
            raises(symmem.InvalidError, partial(symmem.reduce_scatter_tensor, whole[:2], whole, op))
            assert y.equal(before)
    lazy = torch.full((3,), complex(RANK, RANK)).conj()
    symmem.all_reduce(lazy)
    assert lazy.eq(complex(1, -1) * sum(range(SIZE))).all()
    negative = torch.full((3,), complex(1, RANK)).conj().imag
    symmem.all_reduce(negative)
    assert negative.eq(-sum(range(SIZE))).all()


def layouts() -> list[tuple[str, torch.Tensor]]:
    draw = torch.Generator().manual_seed(7 + RANK)
    x = torch.randint(-50, 50, (4 * SIZE, 6, 2 * SIZE, 8), generator=draw).float()
    return [
        ("plain", x),
        ("transposed", x[:, :, 0, 0].t().contiguous().t()),
        ("channels last", x.to(memory_format=torch.channels_last)),
        ("permuted", x.permute(2, 3, 0, 1)),
        ("every second row", x.view(4 * SIZE, -1).t()[::2]),
        ("a column", x.view(-1, 4)[: 4 * SIZE, 1]),
        ("empty", torch.empty(0, 4).t()),
        ("scalar", torch.tensor(float(RANK))),
    ]


@check
def tensors_need_not_be_contiguous() -> None:
    for name, x in layouts():
        for async_op in (False, True):
            a, b = _same_strides(x), x.clone(memory_format=torch.contiguous_format)
            symmem.all_reduce(a, async_op=async_op, op="max")
            symmem.synchronize()
            dist.all_reduce(b, dist.ReduceOp.MAX)
            assert a.equal(b), (name, async_op)
            assert a.stride() == x.stride(), name
        a, b = _same_strides(x), x.clone(memory_format=torch.contiguous_format)
        symmem.broadcast(a, group_src=SIZE - 1)
        dist.broadcast(b, src=SIZE - 1)
        assert a.equal(b), name


def _same_strides(x: torch.Tensor) -> torch.Tensor:
    """Copy a tensor, including its strides."""
    storage = torch.zeros(x.untyped_storage().nbytes() // x.itemsize, dtype=x.dtype)
    return storage.as_strided(x.shape, x.stride(), x.storage_offset()).copy_(x)


@check
def inputs_and_outputs_need_not_be_contiguous() -> None:
    x = (
        torch.arange(12.0 * SIZE).view(3, 4 * SIZE).t() + RANK
    )  # columns are contiguous, rows are not
    want, out = torch.empty(4 * SIZE, 3), torch.zeros(3, 4 * SIZE).t()
    dist.all_to_all_single(want, x.contiguous())
    symmem.all_to_all_single(out, x)
    assert out.equal(want)
    want, out = torch.empty(4 * SIZE * SIZE, 3), torch.zeros(3, 4 * SIZE * SIZE).t()
    dist.all_gather_into_tensor(want, x.contiguous())
    symmem.all_gather_into_tensor(out, x, async_op=True).wait()
    assert out.equal(want)
    part = torch.zeros(3, 4).t()
    symmem.reduce_scatter_tensor(part, x)
    symmem.all_reduce(total := x.contiguous())
    assert part.equal(total.view(SIZE, 4, 3)[RANK])


@check
def ranks_may_use_different_strides() -> None:
    x = torch.arange(12.0).view(3, 4)
    mine = x.t().contiguous().t() if RANK else x.clone()
    symmem.all_reduce(mine)
    assert mine.equal(x * SIZE)


@check
def copies_see_results_of_earlier_works() -> None:
    for _ in range(20):
        x = torch.ones(64, 64)
        symmem.all_reduce(x, async_op=True)
        symmem.all_reduce(x.t(), async_op=True)
        symmem.synchronize()
        assert x.eq(SIZE * SIZE).all()


@check
def unsupported_tensors_are_rejected() -> None:
    dense = torch.ones(4, 4)
    wrong: list[tuple[type[Exception], Any, str]] = [
        (symmem.InvalidError, [dense], "list"),
        (symmem.InvalidError, dense.numpy(), "ndarray"),
        (symmem.InvalidError, None, "NoneType"),
        (symmem.InvalidError, torch.zeros(1).expand(4), "share memory"),
        (symmem.UnsupportedError, dense.to_sparse(), "to_dense"),
        (symmem.UnsupportedError, dense.to_sparse_csr(), "to_dense"),
    ]
    for kind, tensor, words in wrong:
        e = raises(kind, lambda t=tensor: symmem.all_reduce(t))
        assert words in str(e), e
    raises(symmem.InvalidError, lambda: symmem.all_gather_into_tensor(dense, [dense]))
    raises(symmem.InvalidError, lambda: symmem.broadcast([dense], src=0))
    symmem.barrier()


class Wrapper(torch.Tensor):
    """A tensor that wraps another one and has no memory itself."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Wrapper:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    @classmethod
    def __torch_dispatch__(cls, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError(f"{f} of a wrapper")


def tensors_without_memory() -> list[tuple[torch.Tensor, str]]:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard

    mesh = init_device_mesh("cpu", (SIZE,))
    whole, part = torch.ones(4, 4), torch.ones(4)
    freed = torch.ones(4)
    freed.untyped_storage().resize_(0)
    with FakeTensorMode():
        fake = torch.ones(4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns that the API of nested tensors may change.
        jagged = torch.nested.nested_tensor([part, part[1:]], layout=torch.jagged)
    return [
        (DTensor.from_local(part, mesh, [Replicate()]), ".to_local()"),
        (DTensor.from_local(whole, mesh, [Shard(0)]).t(), ".to_local()"),
        (torch.empty(4, device="meta"), "meta device"),
        (torch.empty(4, 4, device="meta").t(), "meta device"),
        (fake, "FakeTensorMode"),
        (jagged, ".values()"),
        (part.to_mkldnn(), ".to_dense()"),
        (whole.to_sparse(), ".to_dense()"),
        (Wrapper(part), "Wrapper, which has no memory"),
        (torch.nn.UninitializedParameter(), "lazy parameter"),
        (freed, "storage was freed"),
    ]


@check
def errors_for_tensors_without_memory_say_what_to_pass() -> None:
    out = torch.zeros(4 * SIZE)
    for tensor, words in tensors_without_memory():
        calls: list[Callable[[], Any]] = [
            lambda t=tensor: symmem.all_reduce(t),
            lambda t=tensor: symmem.all_reduce(t, async_op=True),
            lambda t=tensor: symmem.all_gather_into_tensor(out, t),
            lambda t=tensor: symmem.broadcast(t, group_src=0),
            lambda t=tensor: symmem.send(t, group_dst=0),
            lambda t=tensor: symmem.irecv(t, group_src=0),
            lambda t=tensor: symmem.explain("all_reduce", t),
            lambda t=tensor: symmem.is_symmetric(t),
        ]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch warns about the address of a fake tensor.
            for call in calls:
                error = raises(symmem.UnsupportedError, call)
                assert words in str(error), (words, error)
    torch.func.vmap(in_a_transform)(torch.ones(2, 3))
    symmem.all_reduce(torch.nn.Parameter(torch.ones(3)))
    symmem.all_reduce(torch.empty(0))
    assert not symmem.is_symmetric(torch.empty(0))
    symmem.barrier()


def in_a_transform(x: torch.Tensor) -> torch.Tensor:
    error = raises(symmem.UnsupportedError, lambda: symmem.all_reduce(x))
    assert "torch.func" in str(error), error
    return x


@check
def unsupported_reductions_are_rejected() -> None:
    x = torch.ones(4, dtype=torch.int32)
    wrong: list[Any] = [3, "sums", object(), ["sum"], {}, "sum:2", "premul_sum:x"]
    wrong += ["premul_sum", dist.ReduceOp.RedOpType.PREMUL_SUM, "premul_sum:2"]
    for op in wrong:
        e = raises(symmem.InvalidError, lambda op=op: symmem.all_reduce(x, op))
        assert isinstance(e, ValueError)
    assert x.eq(1).all()


@check
def bitwise_reductions_match_torch() -> None:
    for name, combine in BITWISE.items():
        for dtype in (torch.uint8, torch.int64, torch.bool):
            draw = torch.Generator().manual_seed(3)
            most = 2 if dtype is torch.bool else 256
            parts = torch.randint(most, (SIZE, 100), generator=draw).to(dtype)
            x = parts[RANK].clone()
            symmem.all_reduce(x, getattr(dist.ReduceOp, name.upper()))
            assert x.equal(reduce(combine, parts)), (name, dtype)
            world = symmem.group().name
            made = torch.ops.symmem.reduce_scatter_tensor(parts[RANK].repeat(SIZE), name, world)
            assert made.equal(reduce(combine, parts)), (name, dtype)
        raises(symmem.InvalidError, partial(symmem.all_reduce, torch.ones(4), name))


@check
def premul_sums_multiply_by_the_factor() -> None:
    make: Any = dist._make_nccl_premul_sum
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64):
        parts = [torch.arange(100).to(dtype) + r for r in range(SIZE)]
        for op in (make(0.25), make(torch.tensor(0.25)), "premul_sum:0.25"):
            want = reduce(torch.add, [p * 0.25 for p in parts])
            x = parts[RANK].clone()
            symmem.all_reduce(x, op)
            assert x.equal(want), (dtype, op)
            whole = parts[RANK].repeat(SIZE)
            symmem.reduce_scatter_tensor(x, whole, op)
            assert x.equal(want), (dtype, op)
            x.copy_(parts[RANK])
        made = torch.ops.symmem.all_reduce(x, "premul_sum:0.25", symmem.group().name)
        assert made.equal(want), (dtype, made)
    for factor in (0.0, float("inf"), float("nan")):
        raises(symmem.InvalidError, partial(symmem.all_reduce, x, make(factor)))
    wrong = partial(symmem.all_reduce, torch.ones(2, dtype=torch.int32), "premul_sum:0.5")
    raises(symmem.InvalidError, wrong)


@check
def invalid_names_raise_invalid_error() -> None:
    wrong: list[Any] = ["windw", 3, None]
    for word in wrong:
        raises(symmem.InvalidError, lambda word=word: symmem.set_path(word))
        raises(symmem.InvalidError, lambda word=word: symmem.set_check(word))
    raises(symmem.InvalidError, lambda: symmem.barrier(device_ids=[3]))


@check
def invalid_reserve_sizes_are_rejected() -> None:
    wrong = ((-1, "cannot reserve -1 bytes"), (1 << 60, f"reserving {1 << 60} bytes"))
    for nbytes, words in wrong:
        error = raises(symmem.InvalidError, partial(symmem.reserve, nbytes))
        assert words in str(error), error


@check
def groups_can_be_passed_as_in_torch_distributed() -> None:
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (SIZE,))
    grid = init_device_mesh("cpu", (1, SIZE), mesh_dim_names=("dp", "tp"))
    ways: list[Any] = [mesh, grid["tp"], (grid, 1), dist.group.WORLD, "0", list(range(SIZE))]
    for way in ways:
        symmem.all_reduce(x := torch.ones(3), group=way)
        assert x.eq(SIZE).all(), way
    assert symmem.group(mesh) is symmem.group(mesh.get_group())
    assert symmem.group("0") is symmem.world()
    wrong: list[Any] = [7, 1.5, "8", object(), [0.5], grid, b"0", {"a": 1}, [99], []]
    for way in wrong:
        raises(symmem.InvalidError, lambda way=way: symmem.all_reduce(x, group=way))


@check
def calls_outside_the_group_warn_and_do_nothing() -> None:
    inside = dist.new_group([0])
    x = torch.full((4,), float(RANK))
    calls: list[Callable[[], Any]] = [
        lambda: symmem.all_reduce(x, group=inside),
        lambda: symmem.all_gather_into_tensor(x.clone(), x, group=inside),
        lambda: symmem.reduce_scatter_tensor(x.clone(), x, group=inside),
        lambda: symmem.broadcast(x, group_src=0, group=inside),
        lambda: symmem.all_to_all_single(x.clone(), x, group=inside),
        lambda: symmem.barrier(inside),
        lambda: symmem.all_reduce(x, group=[0]),
    ]
    for call in calls:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            assert call() is None
        assert len(seen) == (1 if RANK else 0), [str(w.message) for w in seen]
        for one in seen:
            assert one.filename == __file__
    assert x.eq(RANK).all()
    if RANK:
        raises(symmem.InvalidError, lambda: symmem.group(inside))


@check
def two_threads_can_use_two_groups() -> None:
    ranks = list(range(SIZE))
    groups = [dist.new_group(ranks) for _ in range(2)]
    for g in groups:
        symmem.group(g)
    failed: list[BaseException] = []

    def run(k: int) -> None:
        draw = random.Random(100 * RANK + k)
        try:
            for i in range(200):
                x = torch.full((draw.choice([10]) * (1 + i % 7 * 1000),), float(i + k))
                work = symmem.all_reduce(x, group=groups[k], async_op=i % 3 == 0)
                if work is not None:
                    work.wait()
                assert x.eq(SIZE * (i + k)).all(), (k, i)
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=run, args=(k,), daemon=True) for k in range(2)]
    for thread in threads if RANK % 2 else threads[::-1]:
        thread.start()
    for thread in threads:
        thread.join(LONGEST)
        assert not thread.is_alive(), failed
    assert not failed, failed


@check
def a_late_group_does_not_delay_others() -> None:
    late, other = (symmem.group(list(range(SIZE)), name=n) for n in ("late", "other"))
    if RANK == 0:
        waiting = symmem.all_reduce(x := torch.ones(1000), group=late, async_op=True)
    for _ in range(20):
        symmem.all_reduce(y := torch.ones(10), group=other)
        assert y.eq(SIZE).all()
    symmem.all_reduce(z := torch.ones(10))
    assert z.eq(SIZE).all()
    if RANK:
        waiting = symmem.all_reduce(x := torch.ones(1000), group=late, async_op=True)
    assert waiting is not None
    assert waiting.wait()
    assert x.eq(SIZE).all()
    late.close()
    raises(symmem.ClosedError, lambda: symmem.all_reduce(x, group=late))


if __name__ == "__main__":
    main()
