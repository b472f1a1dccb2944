"""Compares gradients of collectives with those of torch.distributed.nn.functional over gloo."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as theirs
from harness import RANK, SIZE, check, main, raises

import symmem
from symmem import functional as ours

LONGEST = 60.0


@check
def symmem_initializes() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=LONGEST))
    symmem.init(backend="host", timeout=LONGEST)


ROWS = SIZE * 2
LAST = SIZE - 1


def parts(x: torch.Tensor) -> list[torch.Tensor]:
    return list(x.chunk(SIZE))


def room(x: torch.Tensor) -> list[torch.Tensor]:
    return [torch.empty_like(part) for part in parts(x)]


Function = Callable[[Any, torch.Tensor], Any]

FUNCTIONS: dict[str, Function] = {
    "all_reduce": lambda m, x: m.all_reduce(x),
    "all_gather": lambda m, x: m.all_gather(x),
    "reduce_scatter": lambda m, x: m.reduce_scatter(torch.empty(2, 3).to(x), parts(x)),
    "all_to_all": lambda m, x: m.all_to_all(room(x), parts(x)),
    "all_to_all_single": lambda m, x: m.all_to_all_single(torch.empty_like(x), x),
    "broadcast": lambda m, x: m.broadcast(x, LAST),
    "reduce": lambda m, x: m.reduce(x, LAST),
    "gather": lambda m, x: m.gather(x, LAST),
    "scatter": lambda m, x: m.scatter(parts(x), LAST),
}
"""Calls of both modules. gloo does not support all_to_all_single."""


def flat(result: Any) -> torch.Tensor:
    tensors: Sequence[torch.Tensor] = (result,) if torch.is_tensor(result) else result
    return torch.cat([t.reshape(-1) for t in tensors])


def weigh(result: torch.Tensor) -> torch.Tensor:
    """Compute a loss that differs between ranks and depends on each element."""
    weights = torch.arange(1, result.numel() + 1, dtype=result.dtype)
    return (result * weights * (RANK + 1)).sum()


def matrix(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    made = torch.arange(ROWS * 3, dtype=dtype).reshape(ROWS, 3) + RANK
    return made.requires_grad_()


def gradient(function: Callable[[torch.Tensor], Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Run a function, compute a loss, and return the result and the gradient of the input."""
    x = matrix()
    result = flat(function(x * 2))
    weigh(result).backward()
    assert x.grad is not None
    return result.detach(), x.grad


@check
def gradients_match_torch_distributed() -> None:
    for name, function in FUNCTIONS.items():
        result, found = gradient(lambda x, f=function: f(ours, x))
        like = FUNCTIONS["all_to_all" if name == "all_to_all_single" else name]
        want, expected = gradient(lambda x, f=like: f(theirs, x))
        assert torch.equal(found, expected), f"{name}: got {found}, want {expected}"
        if name == "reduce" and RANK != LAST:
            assert not result.any(), result  # PyTorch returns another result
        else:
            assert torch.equal(result, want), f"{name}: got {result}, want {want}"


def uneven(x: torch.Tensor) -> torch.Tensor:
    """Send r + 1 rows to rank r."""
    sends, receives = list(range(1, SIZE + 1)), [RANK + 1] * SIZE
    source = x.flatten()[: sum(sends)]
    return ours.all_to_all_single(torch.empty(sum(receives)).to(x), source, receives, sends)


def scaled(op: Any, rows: bool) -> Callable[[torch.Tensor], Any]:
    def run(x: torch.Tensor) -> Any:
        if rows:
            return ours.reduce_scatter(torch.empty(2, 3).to(x), parts(x), op)
        return ours.all_reduce(x, op), ours.reduce(x, 0, op)

    return run


SIZES = list(range(1, SIZE + 1))


def v_operators(x: torch.Tensor) -> Any:
    gathered = torch.ops.symmem.all_gather_v(x[: SIZES[RANK]], SIZES, "world")
    return gathered, torch.ops.symmem.reduce_scatter_v(gathered * 2, SIZES, "avg", "world")


DERIVATIVES: dict[str, Callable[[torch.Tensor], Any]] = {
    **{name: lambda x, f=f: f(ours, x) for name, f in FUNCTIONS.items()},
    "uneven": uneven,
    "avg": scaled(dist.ReduceOp.AVG, False),
    "average of parts": scaled("avg", True),
    "premul_sum": scaled("premul_sum:0.5", False),
    "premul_sum of parts": scaled(dist._make_nccl_premul_sum(0.25), True),
    "v": v_operators,
}


@check
def gradients_are_derivatives() -> None:
    """Perturb elements on every rank, and compare the change in the sum of all losses."""

    def of_all_ranks(function: Callable[[torch.Tensor], Any]) -> Callable[..., torch.Tensor]:
        def total(everything: torch.Tensor) -> torch.Tensor:
            mine = ours.all_reduce(everything, "avg")[RANK]
            return ours.all_reduce(weigh(flat(function(mine))))

        return total

    torch.manual_seed(0)
    everything = torch.randn(SIZE, ROWS, 3, dtype=torch.float64, requires_grad=True)
    for name, function in DERIVATIVES.items():
        run = of_all_ranks(function)
        assert torch.autograd.gradcheck(run, everything, raise_exception=False), name


@check
def compiled_calls_match_eager_calls() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        results = [flat(function(ours, x)) for function in FUNCTIONS.values()]
        results += [flat(v_operators(x)), uneven(x), flat(ours.all_reduce(x, dist.ReduceOp.AVG))]
        return torch.cat(results)

    torch._dynamo.reset()
    want, expected = gradient(run)
    got, found = gradient(torch.compile(run, backend="aot_eager", fullgraph=True))
    assert torch.equal(got, want)
    assert torch.equal(found, expected)


@check
def process_groups_are_accepted() -> None:
    pair = dist.new_group([0, 1])
    if RANK < 2:
        x = torch.full((2, 3), float(RANK), requires_grad=True)
        y = ours.broadcast(x, 1, pair)
        assert y.eq(1).all()
        (y * (RANK + 1)).sum().backward()
        assert x.grad is not None
        assert x.grad.eq(3.0 * RANK).all()
    else:
        raises(symmem.InvalidError, lambda: ours.all_reduce(torch.ones(1), group=pair))


@check
def other_reductions_reject_backward_passes() -> None:
    x = matrix()
    for op in ("max", dist.ReduceOp.MIN, "product"):
        y = ours.all_reduce(x * 1, op)
        e = raises(symmem.UnsupportedError, y.sum().backward)
        assert "torch.ops.symmem.all_reduce with the reduction" in str(e), e
        assert "symmem.functional" in str(e), e
        assert "detach" in str(e), e
    assert x.grad is None


@check
def outputs_are_tracked() -> None:
    for _ in range(2):
        x, buffer = matrix(), torch.empty(ROWS, 3)
        returned = ours.all_to_all_single(buffer, x * 2)
        assert torch.equal(returned, buffer)
        weigh(flat(buffer)).backward()
        assert x.grad is not None
        assert x.grad.any()


@check
def outputs_may_be_views_and_are_reused() -> None:
    buffer, whole = torch.empty(ROWS, 3), torch.empty(ROWS, 3)
    for _ in range(3):
        x = matrix()
        got = flat(ours.all_to_all(parts(whole), parts(x * 2)))
        weigh(got + flat(ours.all_to_all_single(buffer, x))).backward()
        assert torch.equal(got, whole.flatten())
        assert x.grad is not None
        assert x.grad.any()


def written(call: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Check that a backward pass raises an error when it reaches a written tensor."""
    w = torch.ones(4, 4, requires_grad=True)
    y = call(torch.full((4, 4), float(RANK + 1)) @ w)
    e = raises(symmem.UnsupportedError, y.sum().backward)
    assert "writes in place" in str(e), e
    assert "symmem.functional" in str(e), e
    assert w.grad is None
    with torch.no_grad():
        call(torch.ones(4, 4) @ w)


def in_place(*calls: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], torch.Tensor]:
    def run(y: torch.Tensor) -> torch.Tensor:
        for call in calls:
            call(y)
        return y * 3

    return run


def into(call: Callable[[torch.Tensor, torch.Tensor], Any], rows: int) -> Any:
    def run(y: torch.Tensor) -> torch.Tensor:
        output = torch.empty(rows, 4)
        call(output, y)
        return output * 3

    return run


def listed(y: torch.Tensor) -> torch.Tensor:
    outputs = [torch.empty_like(y) for _ in range(SIZE)]
    symmem.all_to_all(outputs, [y] * SIZE)
    return torch.stack(outputs) * 3


WRITING = {
    "all_reduce": in_place(symmem.all_reduce),
    "transposed": in_place(lambda y: symmem.all_reduce(y.t())),
    "a view": in_place(lambda y: symmem.all_reduce(y[1:3])),
    "async": in_place(lambda y: symmem.all_reduce(y, async_op=True).wait()),
    "broadcast": in_place(lambda y: symmem.broadcast(y, 0)),
    "reduce": in_place(lambda y: symmem.reduce(y, 0)),
    "all_gather": into(symmem.all_gather_into_tensor, 4 * SIZE),
    "all_gather_v": into(lambda o, y: symmem.all_gather_v(o, y, [4] * SIZE), 4 * SIZE),
    "reduce_scatter": into(lambda o, y: symmem.reduce_scatter_tensor(o, y.repeat(SIZE, 1)), 4),
    "reduce_scatter_v": into(
        lambda o, y: symmem.reduce_scatter_v(o, y.repeat(SIZE, 1), [4] * SIZE), 4
    ),
    "all_to_all": into(lambda o, y: symmem.all_to_all_single(o, y.repeat(SIZE, 1)), 4 * SIZE),
    "lists": listed,
    "operator": in_place(lambda y: torch.ops.symmem.all_reduce_(y, "sum", "world")),
}


@check
def in_place_calls_reject_backward_passes() -> None:
    for call in WRITING.values():
        written(call)


@check
def compiled_in_place_calls_reject_backward_passes() -> None:
    for name in ("all_reduce", "a view", "all_gather", "reduce_scatter_v", "all_to_all", "lists"):
        torch._dynamo.reset()
        written(torch.compile(WRITING[name], backend="aot_eager", fullgraph=True))


@check
def rooted_calls_reject_backward_passes_where_they_write() -> None:
    w = torch.ones(2, requires_grad=True)
    rows = [torch.empty(2) for _ in range(SIZE)] if RANK == 0 else None
    symmem.gather(w * 2, rows, 0)
    part = torch.empty(2)
    symmem.scatter(part, [w * 2] * SIZE if RANK == 0 else None, 0)
    if RANK == 0:
        raises(symmem.UnsupportedError, sum(rows or []).sum().backward)
        raises(symmem.UnsupportedError, part.sum().backward)


@check
def norms_reject_backward_passes() -> None:
    rows, quarter = torch.ones(2 * SIZE, 128).bfloat16(), torch.ones(2, 128).bfloat16()
    for run, residual in (
        (symmem.all_reduce_rms_norm, rows),
        (symmem.reduce_scatter_rms_norm, quarter),
    ):
        weight = torch.ones(128).bfloat16().requires_grad_()
        normalized = run(rows.clone(), residual.clone(), weight, 1e-6)
        raises(symmem.UnsupportedError, normalized.float().sum().backward)
        assert weight.grad is None
    for run_fp8, residual in (
        (symmem.all_reduce_rms_norm_fp8, rows),
        (symmem.reduce_scatter_rms_norm_fp8, quarter),
    ):
        weight = torch.ones(128).bfloat16().requires_grad_()
        for result in run_fp8(rows.clone(), residual.clone(), weight, 1e-6):
            assert result.requires_grad
            raises(symmem.UnsupportedError, result.float().sum().backward)
        scale = torch.ones(1).requires_grad_()
        for run in (run_fp8, torch.compile(run_fp8, backend="aot_eager", fullgraph=True)):
            torch._dynamo.reset()
            result, _ = run(rows.clone(), residual.clone(), weight.detach(), 1e-6, scale=scale)
            raises(symmem.UnsupportedError, result.float().sum().backward)


@check
def parameters_can_be_written() -> None:
    w = torch.full((2,), float(RANK), requires_grad=True)
    symmem.broadcast(w, 1)
    symmem.all_reduce(w)
    assert w.is_leaf
    assert w.eq(SIZE).all()
    (w * 3).sum().backward()
    assert w.grad is not None
    assert w.grad.eq(3).all()


@check
def a_reused_buffer_does_not_keep_earlier_graphs() -> None:
    buffer, w = torch.empty(2 * SIZE), torch.ones(2, requires_grad=True)
    kept = []
    for _ in range(3):
        y = w.exp()
        symmem.all_gather_into_tensor(buffer, y)
        kept.append(weakref.ref(y))
        del y
    assert [one() for one in kept] == [None] * 3


@check
def invalid_arguments_are_rejected() -> None:
    x, wrong = matrix(), torch.empty(ROWS + 1, 3)
    for call in (
        lambda: ours.reduce_scatter(wrong, parts(x)),
        lambda: ours.reduce_scatter(torch.empty(2, 3), parts(x)[1:]),
        lambda: ours.all_to_all(room(x), [*parts(x), x]),
        lambda: ours.all_to_all_single(wrong, x),
        lambda: ours.scatter([x] * (SIZE - 1)),
        lambda: ours.scatter([x] * (SIZE - 1) + [wrong]),
        lambda: ours.broadcast(x, SIZE),
        lambda: ours.gather(x, -1),
        lambda: ours.all_reduce(x, "none"),
    ):
        raises(symmem.InvalidError, call)
    raises(
        symmem.UnsupportedError,
        lambda: symmem.reduce_scatter_v(torch.empty(2, 3), x, [2] * SIZE, "premul_sum:2"),
    )
    assert ours.all_reduce(torch.ones(2)).eq(SIZE).all()


if __name__ == "__main__":
    main()
