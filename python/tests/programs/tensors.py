"""Tests PyTorch tensors on the host backend: memory, collectives, operators, groups."""

from __future__ import annotations

import gc
import threading
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from harness import RANK, SIZE, check, main, raises

import symmem

TOTAL = SIZE * (SIZE + 1) / 2
ALL = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.int16,
    torch.uint16,
    torch.uint32,
    torch.uint64,
)


@check
def symmem_initializes_from_torch_distributed() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    world = symmem.init(backend="host", timeout=20)
    assert (world.rank, world.size) == (dist.get_rank(), dist.get_world_size())
    assert symmem.group(dist.group.WORLD) is world
    assert symmem.stats()["check"] == "every"


@check
def constructors_match_pytorch() -> None:
    with symmem.use() as world:
        made = [
            (symmem.zeros(3, 5), torch.zeros(3, 5)),
            (symmem.ones((3, 5), dtype=torch.int8), torch.ones((3, 5), dtype=torch.int8)),
            (symmem.full((2, 2), 7), torch.full((2, 2), 7)),
            (symmem.full([2], 0.5, device="cpu"), torch.full([2], 0.5)),
            (symmem.full((2,), True), torch.full((2,), True)),
            (symmem.zeros(size=torch.Size([2, 3])), torch.zeros(size=torch.Size([2, 3]))),
            (symmem.zeros(torch.tensor(4)), torch.zeros(4)),
            (symmem.zeros(()), torch.zeros(())),
        ]
    for ours, theirs in made:
        assert ours.equal(theirs), (ours, theirs)
        assert ours.dtype is theirs.dtype, (ours, theirs)
        assert symmem.is_symmetric(ours, world), ours
    for mistake in (
        lambda: symmem.empty(2.7),
        lambda: symmem.empty(-1),
        lambda: symmem.empty(2, "3"),
        lambda: symmem.empty(2, size=(3,)),
        lambda: symmem.empty(2, device="cuda:0"),
        lambda: symmem.init(backend="host", check="evry"),
        lambda: symmem.set_path("windw"),
    ):
        raises(symmem.InvalidError, mistake)


@check
def tensors_are_in_windows_after_the_scope() -> None:
    with symmem.use() as world:
        x = symmem.empty(3, 5, dtype=torch.float16)
        y = symmem.empty((4,))
        like = symmem.empty_like(y)
    plain = torch.empty(7)
    assert x.shape == (3, 5)
    assert x.dtype is torch.float16
    assert y.dtype is like.dtype is torch.float32
    assert all(symmem.is_symmetric(t) for t in (x, y, like, x[1], x.t(), y[2:]))
    assert not symmem.is_symmetric(plain, world)
    assert symmem.empty(0).numel() == 0
    assert x.data_ptr() % 512 == 0


@check
def all_reduce_supports_every_type_and_reduction() -> None:
    wants = {"sum": sum, "min": min, "max": max}
    for dtype in ALL:
        for name, want in wants.items():
            x = symmem.empty(1000, dtype=dtype).fill_(RANK + 1)
            symmem.all_reduce(x, name)
            assert x.eq(want(range(1, SIZE + 1))).all(), (dtype, name, x[:3])
    x = torch.full((10,), float(RANK + 1))
    symmem.all_reduce(x, dist.ReduceOp.PRODUCT)
    assert x[0] == torch.tensor([r + 1.0 for r in range(SIZE)]).prod()
    symmem.all_reduce(y := torch.full((10,), float(RANK + 1)), dist.ReduceOp.AVG)
    assert y[0] == TOTAL / SIZE
    b = torch.tensor([RANK == 0, False, True])
    symmem.all_reduce(b)
    assert b.tolist() == [True, False, True]
    c = torch.full((4,), complex(RANK + 1, 1))
    symmem.all_reduce(c)
    assert c[0] == complex(TOTAL, SIZE)


@check
def ordinary_tensors_are_supported() -> None:
    x = torch.full((12345,), float(RANK + 1))
    symmem.all_reduce(x)
    assert x.eq(TOTAL).all()
    assert not symmem.is_symmetric(x)
    assert symmem.explain("all_reduce", x).path == "plain"


@check
def integers_of_all_sizes_are_copied_and_reduced() -> None:
    for dtype in (torch.int16, torch.uint16, torch.uint32, torch.uint64):
        largest = torch.iinfo(dtype).max
        for make in (torch.empty, symmem.empty):
            mine = torch.tensor([RANK, largest, largest - RANK], dtype=dtype)
            part = make(3, dtype=dtype).copy_(mine)
            whole = make(3 * SIZE, dtype=dtype)
            symmem.all_gather_into_tensor(whole, part)
            want = [v for r in range(SIZE) for v in (r, largest, largest - r)]
            assert whole.tolist() == want, (dtype, whole)
            symmem.all_to_all_single(moved := make(3 * SIZE, dtype=dtype), whole)
            assert moved.tolist() == want[3 * RANK : 3 * RANK + 3] * SIZE, (dtype, moved)
            symmem.reduce_scatter_tensor(part, whole, "max")
            assert part.tolist() == want[3 * RANK : 3 * RANK + 3], (dtype, part)
            symmem.broadcast(part, src=SIZE - 1)
            assert part.tolist() == want[-3:], (dtype, part)
            symmem.all_reduce(whole, "avg")
            bits = 1 << 8 * dtype.itemsize
            sums = [v * SIZE % bits for v in want]
            if dtype is torch.int16:
                sums = [v - bits if v > largest else v for v in sums]
            assert whole.tolist() == [-(-v // SIZE) if v < 0 else v // SIZE for v in sums]


@check
def gather_scatter_broadcast_exchange() -> None:
    for make in (torch.empty, symmem.empty):
        part, whole = make(64), make(64 * SIZE)
        part.fill_(RANK)
        symmem.all_gather_into_tensor(whole, part)
        assert whole.view(SIZE, 64).eq(torch.arange(SIZE)[:, None]).all()
        whole.copy_(torch.arange(64 * SIZE))
        symmem.reduce_scatter_tensor(part, whole)
        assert part.eq(torch.arange(64 * RANK, 64 * (RANK + 1)) * SIZE).all()
        part.fill_(RANK)
        symmem.broadcast(part, src=SIZE - 1)
        assert part.eq(SIZE - 1).all()
        symmem.broadcast(part.fill_(RANK), group_src=0)
        assert part.eq(0).all()
        out = make(64 * SIZE)
        whole.view(SIZE, 64).copy_((torch.arange(SIZE) + 10 * RANK)[:, None])
        symmem.all_to_all_single(out, whole)
        assert out.view(SIZE, 64).eq((torch.arange(SIZE) * 10 + RANK)[:, None]).all()
    flags = torch.tensor([RANK == 0])
    every = torch.empty(SIZE, dtype=torch.bool)
    symmem.all_gather_into_tensor(every, flags)
    assert every.tolist() == [r == 0 for r in range(SIZE)]


@check
def parts_of_different_sizes_are_exchanged() -> None:
    sends = [to + 1 for to in range(SIZE)]
    receives = [RANK + 1] * SIZE
    source = torch.arange(sum(sends) * 3, dtype=torch.int64).view(-1, 3) + 1000 * RANK
    got = torch.empty(sum(receives), 3, dtype=torch.int64)
    symmem.all_to_all_single(got, source, receives, sends)
    want = torch.empty_like(got)
    dist.all_to_all_single(want, source, receives, sends)
    assert got.equal(want)


@check
def async_calls_return_work() -> None:
    x = symmem.empty(1 << 16).fill_(RANK + 1)
    work = symmem.all_reduce(x, async_op=True)
    assert work is not None
    assert work.wait()
    assert work.is_completed()
    assert x.eq(TOTAL).all()
    assert work.result()[0] is x
    assert work.get_future().wait()[0] is x
    works = [symmem.all_reduce(t, async_op=True) for t in torch.ones(5, 100)]
    for one in reversed(works):
        assert one is not None
        one.synchronize()


@check
def invalid_calls_are_rejected_before_they_run() -> None:
    x, y = torch.empty(4, 6), torch.empty(5)
    raises(symmem.InvalidError, lambda: symmem.all_gather_into_tensor(y, x))
    raises(symmem.InvalidError, lambda: symmem.all_gather_into_tensor(y.double(), y))
    raises(symmem.InvalidError, lambda: symmem.reduce_scatter_tensor(x, y))
    raises(symmem.InvalidError, lambda: symmem.all_reduce(y, "premul_sum"))
    raises(symmem.UnsupportedError, lambda: symmem.all_reduce(y.to(torch.float8_e4m3fn)))
    raises(symmem.InvalidError, lambda: symmem.broadcast(y))
    raises(symmem.InvalidError, lambda: symmem.broadcast(y, src=99))
    raises(symmem.InvalidError, lambda: symmem.all_to_all_single(x, x, [3] * SIZE, [3] * SIZE))
    raises(symmem.InvalidError, lambda: symmem.explain("all_sorts", y))
    raises(symmem.UnsupportedError, symmem.attach)
    assert not symmem.detach(), "nothing was attached"
    symmem.barrier()


@check
def scopes_of_groups_nest_and_can_be_disabled() -> None:
    world = symmem.world()
    pair = [r for r in range(SIZE) if r // 2 == RANK // 2]
    mine = symmem.group(dist.new_group([0, 1]) if SIZE == 2 else _pair_groups()[RANK // 2])
    assert list(mine.ranks) == pair
    outside = dist.new_group([SIZE - 1])
    if RANK != SIZE - 1:
        raises(symmem.InvalidError, lambda: symmem.group(outside))
    with symmem.use(world):
        a = symmem.empty(1000)
        with symmem.use(mine):
            b = symmem.empty(1000).fill_(RANK + 1)
            with symmem.use(mine, disabled=True):
                c = symmem.empty(1000)
        d = symmem.empty(1000)
    assert symmem.is_symmetric(a, world)
    assert symmem.is_symmetric(d, world)
    assert symmem.is_symmetric(b, mine)
    assert not symmem.is_symmetric(c, mine)
    assert symmem.is_symmetric(b, world) == (mine.pool == world.pool)
    symmem.all_reduce(b, group=mine)
    assert b.eq(sum(r + 1 for r in pair)).all()


def _pair_groups() -> list[Any]:
    return [dist.new_group([r, r + 1]) for r in range(0, SIZE, 2)]


@check
def a_scope_ended_by_an_exception_registers_nothing() -> None:
    symmem.synchronize()
    before = symmem.stats()["groups"]["world"]["registrations"]

    def broken() -> None:
        with symmem.use():
            symmem.empty(100 << 20)
            raise KeyError("inside")

    raises(KeyError, broken)
    assert symmem.stats()["groups"]["world"]["registrations"] == before
    assert not symmem.world().runtime.current.pools
    gc.collect()
    x = symmem.empty(1000).fill_(1)
    symmem.all_reduce(x)
    assert x.eq(SIZE).all()


@check
def scopes_work_in_backward() -> None:
    made = []

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            with symmem.use() as world:
                out = symmem.empty_like(grad)
            out.copy_(grad * 2)
            made.append(symmem.is_symmetric(out, world))
            symmem.all_reduce(out)
            return out

    x = torch.ones(100, requires_grad=True)
    with symmem.use():
        Double.apply(x).sum().backward()
    assert made == [True]
    assert x.grad is not None
    assert x.grad.eq(2 * SIZE).all()
    thread = threading.Thread(target=lambda: Double.apply(x).sum().backward())
    thread.start()
    thread.join()
    assert made == [True, True]


@check
def operators_work_in_eager_and_fake_mode() -> None:
    ops = torch.ops.symmem
    x = torch.full((SIZE * 2, 3), float(RANK + 1))
    y = ops.all_reduce(x, "sum", "world")
    assert y.eq(TOTAL).all()
    assert x.eq(RANK + 1).all()
    assert symmem.is_symmetric(y)
    assert ops.all_gather_into_tensor(x, "world").shape == (SIZE * SIZE * 2, 3)
    assert ops.reduce_scatter_tensor(x, "sum", "world").eq(TOTAL).all()
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        fake = mode.from_tensor(x)
        assert ops.all_reduce(fake, "sum", "world").shape == x.shape
        assert ops.all_gather_into_tensor(fake, "world").shape == (SIZE * SIZE * 2, 3)
        assert ops.reduce_scatter_tensor(fake, "sum", "world").shape == (2, 3)
        assert ops.all_reduce_(fake, "sum", "world") is None


@check
def compiled_functions_can_call_collectives() -> None:
    def layer(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        with symmem.use():
            y = x * 2
        symmem.all_reduce(y, dist.ReduceOp.SUM)
        symmem.all_reduce(y, "max", symmem.world())
        symmem.all_gather_into_tensor(out, y)
        return y + 1

    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    x = torch.full((8,), float(RANK + 1))
    out = torch.empty(8 * SIZE)
    assert compiled(x, out).eq(2 * TOTAL + 1).all()
    assert out.eq(2 * TOTAL).all()

    def functional(x: torch.Tensor) -> torch.Tensor:
        return torch.ops.symmem.all_reduce(x + 1, "sum", "world") * 2

    again = torch.compile(functional, backend="aot_eager", fullgraph=True)
    assert again(x).eq(2 * (TOTAL + SIZE)).all()


@check
def stats_and_explain_describe_calls() -> None:
    x = symmem.empty(1000)
    with symmem.use():
        pass
    found = symmem.explain("all_reduce", x)
    assert isinstance(found, symmem.Explanation)
    assert found.path in ("window", "direct")
    assert "all" in str(found).lower()
    large = torch.empty(1000 * SIZE)
    assert symmem.explain("all_gather_into_tensor", x, large).why
    assert symmem.explain("reduce_scatter_tensor", large, x).why
    assert symmem.explain("all_to_all_single", x, torch.empty(1000)).why
    raises(symmem.OutOfRangeError, lambda: symmem.explain("reduce_scatter_tensor", x, large))
    stats = symmem.stats()
    assert stats["pools"][0]["used"] >= 4000
    assert "world" in stats["groups"]
    symmem.set_path("plain")
    assert symmem.explain("all_reduce", x).path == "plain"
    symmem.set_path("auto")
    symmem.set_check("registration")
    symmem.set_check("every")
    symmem.check()


@check
def symmem_can_be_reinitialized() -> None:
    gc.collect()
    x = symmem.empty(10)
    raises(symmem.InvalidError, symmem.finalize)
    del x
    gc.collect()
    symmem.finalize(force=True)
    raises(symmem.ClosedError, lambda: symmem.all_reduce(torch.ones(1)))
    dist.barrier()
    again = symmem.init(backend="host", timeout=20, check="registration")
    with symmem.use(again):
        y = symmem.empty(10).fill_(1)
    symmem.all_reduce(y)
    assert y.eq(SIZE).all()
    dist.destroy_process_group()
    symmem.all_reduce(y)
    assert y.eq(SIZE * SIZE).all(), "the process group may be destroyed first"


if __name__ == "__main__":
    main()
