"""Tests deterministic reductions on real processes."""

from __future__ import annotations

import math

import pytest
from conftest import Checks, run_checks
from test_values import names

pytestmark = [pytest.mark.library, pytest.mark.torch]


@pytest.fixture(
    scope="module",
    params=[(2, None), (3, None), (4, "tree"), (4, "rounded-tree")],
    ids=["2 ranks", "3 ranks", "tree of 4", "rounded tree of 4"],
)
def checks(request: pytest.FixtureRequest) -> Checks:
    ranks, formula = request.param
    environment = {"SYMMEM_DETERMINISTIC": formula} if formula else {}
    return run_checks("deterministic.py", ranks, env=environment)


@pytest.mark.parametrize("name", names("deterministic.py"))
def test_deterministic(checks: Checks, name: str) -> None:
    checks.verify(name)


def test_the_inputs_distinguish_the_formulas() -> None:
    import torch
    from formula import compared, contributed, reduced

    count = 10_000
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        parts = [contributed(dtype, 7, rank, 4, count) for rank in range(4)]
        assert parts[0].isnan().any()
        assert parts[0].isinf().any()
        ranks, tree = (reduced(f, "sum", parts) for f in ("ranks", "tree"))
        wrong, most, mean = compared(tree, ranks)
        assert wrong > count // 10, (dtype, wrong)
        assert most > mean > 0, (dtype, most, mean)
        assert compared(reduced("ranks", "sum", parts), ranks) == (0, 0, 0)


@pytest.mark.parametrize(
    ("formula", "op", "numbers", "want"),
    [
        ("ranks", "sum", [2048, 1, 1, 1], 2052),  # 2051 is halfway between 2050 and 2052 in float16
        ("tree", "sum", [2048, 1, 1, 1], 2052),
        ("rounded-tree", "sum", [2048, 1, 1, 1], 2050),
        ("ranks", "min", [0.0, -0.0], -0.0),
        ("ranks", "max", [-0.0, 0.0], 0.0),
        ("ranks", "prod", [float("inf"), 0.0], float("nan")),
        ("ranks", "avg", [1, 2, 4], 7 / 3),
        ("ranks", "avg", [65504, 65504, 65504], 65504),
        ("tree", "avg", [65504, 65504, -65504, -65504], 0),
        ("rounded-tree", "avg", [65504, 65504, -65504, -65504], 0),  # inf - inf unless scaled
    ],
)
def test_the_formula_matches_the_documentation(
    formula: str, op: str, numbers: list[float], want: float
) -> None:
    import torch
    from formula import compared, reduced

    parts = [torch.tensor([n], dtype=torch.float16) for n in numbers]
    bits = torch.tensor([want], dtype=torch.float16)
    if math.isnan(want):
        bits.view(torch.int16).fill_(0x7FFF)
    assert compared(reduced(formula, op, parts), bits)[0] == 0
