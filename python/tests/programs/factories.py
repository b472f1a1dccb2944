"""Tests PyTorch's factory functions in scopes on the host backend."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from harness import RANK, SIZE, check, main, raises

import symmem
from symmem._torch import factories

SHAPE = (4, 3)
LIKE = torch.ones(SHAPE, dtype=torch.float64)

CALLS: dict[str, Callable[[], torch.Tensor]] = {
    "empty": lambda: torch.empty(SHAPE),
    "empty_like": lambda: torch.empty_like(LIKE),
    "zeros": lambda: torch.zeros(4, 3, dtype=torch.bfloat16),
    "ones": lambda: torch.ones(SHAPE, device="cpu"),
    "full": lambda: torch.full(SHAPE, 7),
    "eye": lambda: torch.eye(5),
    "arange": lambda: torch.arange(3, 9),
    "linspace": lambda: torch.linspace(0, 1, 5),
    "logspace": lambda: torch.logspace(0, 1, 5),
    "tensor": lambda: torch.tensor([[1.0, 2.0]]),
    "rand": lambda: torch.rand(SHAPE),
    "randn": lambda: torch.randn(SHAPE, requires_grad=True),
    "randint": lambda: torch.randint(0, 9, SHAPE),
    "randperm": lambda: torch.randperm(9),
    "normal": lambda: torch.normal(0.0, 1.0, SHAPE),
    "zeros_like": lambda: torch.zeros_like(LIKE),
    "ones_like": lambda: torch.ones_like(LIKE),
    "full_like": lambda: torch.full_like(LIKE, 2),
    "rand_like": lambda: torch.rand_like(LIKE),
    "randn_like": lambda: torch.randn_like(LIKE),
    "randint_like": lambda: torch.randint_like(LIKE, 9),
    "new_empty": lambda: LIKE.new_empty(SHAPE),
    "new_zeros": lambda: LIKE.new_zeros(SHAPE),
    "new_ones": lambda: LIKE.new_ones(SHAPE),
    "new_full": lambda: LIKE.new_full(SHAPE, 3),
    "new_tensor": lambda: LIKE.new_tensor([1, 2, 3]),
}


@check
def symmem_initializes() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    symmem.init(backend="host", timeout=60)


@check
def factories_return_symmetric_tensors() -> None:
    assert {*CALLS} == {*factories.NAMES, *factories.METHODS}
    for name, call in CALLS.items():
        torch.manual_seed(1)
        plain = call()
        torch.manual_seed(1)
        with symmem.use():
            made = call()
        assert symmem.is_symmetric(made), name
        assert not symmem.is_symmetric(plain), name
        assert made.dtype is plain.dtype, name
        assert made.shape == plain.shape, name
        assert made.stride() == plain.stride(), name
        assert made.requires_grad == plain.requires_grad, name
        assert made.is_leaf, name
        assert "empty" in name or torch.equal(made, plain), name
    symmem.check()


@check
def modules_have_symmetric_parameters() -> None:
    torch.manual_seed(1)
    want = torch.nn.Linear(4, 2)
    torch.manual_seed(1)
    with symmem.use():
        layer = torch.nn.Linear(4, 2)
    assert torch.equal(layer.weight, want.weight)
    assert all(symmem.is_symmetric(p) for p in layer.parameters())
    layer(torch.ones(3, 4)).sum().backward()
    torch.optim.SGD(layer.parameters(), 0.1).step()
    symmem.broadcast(layer.weight, 0)


@check
def other_tensors_are_ordinary() -> None:
    x = torch.ones(SHAPE)
    with symmem.use():
        output = torch.empty(SHAPE)
        tensors = [x + 1, x.clone(), x @ x.t(), torch.cat([x, x]), torch.zeros(0)]
        given = torch.ones(SHAPE, out=output)
        meta = torch.zeros(SHAPE, device="meta")
        sparse = torch.zeros_like(x.to_sparse())
    assert not any(symmem.is_symmetric(t) for t in tensors)
    assert given is output
    assert meta.is_meta
    assert sparse.is_sparse


@check
def the_innermost_scope_applies() -> None:
    half = symmem.group([RANK], name="alone")
    with symmem.use():
        with symmem.use(disabled=True):
            plain = torch.zeros(SHAPE)
        with symmem.use(half):
            mine = torch.zeros(SHAPE)
        made = torch.zeros(SHAPE)
    assert symmem.is_symmetric(made)
    assert not symmem.is_symmetric(plain)
    assert symmem.is_symmetric(mine, half)
    assert not symmem.is_symmetric(mine)


@check
def exceptions_end_scopes() -> None:
    def fails() -> None:
        with symmem.use():
            torch.zeros(-1)

    raises(RuntimeError, fails)
    assert not symmem.is_symmetric(torch.zeros(SHAPE))


@check
def other_threads_allocate_ordinary_tensors() -> None:
    made: list[torch.Tensor] = []
    with symmem.use():
        thread = threading.Thread(target=lambda: made.append(torch.zeros(SHAPE)))
        thread.start()
        thread.join()
    assert not symmem.is_symmetric(made[0])


@check
def strides_may_differ_between_ranks() -> None:
    """Copies inside a collective are not allocated from the scope's pool."""
    x = torch.full(SHAPE, 1.0)
    with symmem.use():
        if RANK:
            x = x.t().contiguous().t()
        symmem.all_reduce(x)
    with symmem.use():
        y = torch.ones(SHAPE)
    symmem.all_reduce(y)
    symmem.check()
    assert x.eq(SIZE).all()
    assert y.eq(SIZE).all()


@check
def compiled_code_runs_in_a_scope() -> None:
    def layer(x: torch.Tensor) -> torch.Tensor:
        y = x + torch.ones_like(x)
        symmem.all_reduce(y)
        return y + torch.zeros(3)

    run = torch.compile(layer, backend="aot_eager", fullgraph=True)
    with symmem.use():
        assert run(torch.ones(SHAPE)).eq(2 * SIZE).all()
    assert run(torch.ones(SHAPE)).eq(2 * SIZE).all()
    symmem.check()


if __name__ == "__main__":
    main()
