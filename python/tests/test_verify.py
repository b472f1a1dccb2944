"""`python -m symmem.verify` and `python -m symmem.bench`, on the host backend."""

from __future__ import annotations

import json
import math
import os
import sys
from typing import Any

import processes
import pytest
from processes import SOURCE, Result, run_ranks

from symmem import _report
from symmem._workload import Action, Config, Program, expected, in_group, members


def run(module: str, *arguments: str) -> Result:
    env = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
    env["PYTHONPATH"] = str(SOURCE)
    return processes.run(sys.executable, "-m", module, "--backend", "host", *arguments, env=env)


def forked(ranks: int, *arguments: str) -> Result:
    """Run symmem.verify on ranks that are forked; return what rank 0 says, which speaks for all."""
    results = run_ranks("verify.py", ranks, "--backend", "host", *arguments)
    assert len({r.code for r in results}) == 1, results
    return results[0]


@pytest.mark.library
@pytest.mark.torch
def test_the_table_is_that_of_the_command() -> None:
    done = run("symmem.verify", "--ranks", "2", "--cases", "3", "--rounds", "1", "--size", "64Ki")
    assert done.code == 0, done
    assert done.out.splitlines() == [
        "2 ranks on the host backend; check every, placement creation, path window",
        "",
        "TestCase  Size    Value  Sym  Exp  MaxDiff     MeanDiff    Result",
        "1.1       65,536  1      yes  3    0.00000000  0.00000000  PASS",
        "1.2       65,536  2      yes  6    0.00000000  0.00000000  PASS",
        "1.3       65,536  3      yes  9    0.00000000  0.00000000  PASS",
        "",
        "Total: 3 | Passed: 3 | Failed: 0",
    ]


@pytest.mark.library
@pytest.mark.torch
def test_the_bug_is_shown_and_caught() -> None:
    bug = ["--skew", "--churn", "200", "--seed", "1", "--json"]
    shown = forked(2, *bug, "--placement", "address", "--check", "off")
    assert shown.code == 1, shown
    assert json.loads(shown.out)["failed"] > 0
    caught = forked(2, *bug, "--placement", "address", "--check", "every")
    report = json.loads(caught.out)
    assert (caught.code, report["failed"]) == (1, 0)
    assert report["divergence"]["message"]
    cured = forked(2, *bug, "--groups", "2")
    assert cured.code == 0, cured


@pytest.mark.library
@pytest.mark.torch
def test_bits_are_compared_with_a_formula_of_every_type_and_reduction() -> None:
    given = ["--cases", "40", "--rounds", "1", "--size", "2Ki"]
    done = forked(3, "--deterministic", *given)
    assert done.code == 0, done
    lines = done.out.splitlines()
    assert lines[0].endswith(", path auto")
    assert lines[1] == "Bits are compared with the formula ranks, of numbers that cancel."
    assert any(line.split()[:4] == ["1.3", "sum", "float16", "4,096"] for line in lines), done
    assert any(line.split()[:4] == ["1.40", "avg", "uint8", "8,192"] for line in lines), done
    assert lines[-1] == "Total: 40 | Passed: 40 | Failed: 0"
    done = forked(4, "--deterministic=tree", *given, "--json")
    report = json.loads(done.out)
    assert (report["deterministic"], report["passed"]) == ("tree", 40), done


@pytest.mark.torch
def test_the_numbers_tell_one_formula_from_another() -> None:
    import torch

    from symmem._formula import compared, contributed, reduced

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


@pytest.mark.torch
@pytest.mark.parametrize(
    ("formula", "op", "numbers", "want"),
    [
        ("ranks", "sum", [2048, 1, 1, 1], 2052),  # 2051 is halfway between 2050 and 2052
        ("tree", "sum", [2048, 1, 1, 1], 2052),
        ("rounded-tree", "sum", [2048, 1, 1, 1], 2050),
        ("ranks", "min", [0.0, -0.0], -0.0),
        ("ranks", "max", [-0.0, 0.0], 0.0),
        ("ranks", "prod", [float("inf"), 0.0], float("nan")),
        ("ranks", "avg", [1, 2, 4], 7 / 3),
        ("ranks", "avg", [65504, 65504, 65504], 65504),
        ("tree", "avg", [65504, 65504, -65504, -65504], 0),
        ("rounded-tree", "avg", [65504, 65504, -65504, -65504], 0),  # inf - inf, unless scaled
    ],
)
def test_the_formula_is_that_of_the_page(
    formula: str, op: str, numbers: list[float], want: float
) -> None:
    import torch

    from symmem._formula import compared, reduced

    parts = [torch.tensor([n], dtype=torch.float16) for n in numbers]
    bits = torch.tensor([want], dtype=torch.float16)
    if math.isnan(want):
        bits.view(torch.int16).fill_(0x7FFF)
    assert compared(reduced(formula, op, parts), bits)[0] == 0


@pytest.mark.library
@pytest.mark.torch
def test_what_cannot_run_is_code_2() -> None:
    assert run("symmem.verify", "--ranks", "0").code == 2
    assert run("symmem.verify", "--deterministic=sorted").code == 2
    three = forked(3, "--deterministic=tree")
    assert three.code == 2, three
    assert "the formula tree of reductions is for 2, 4, 8, ... ranks" in three.err
    refused = run("symmem.verify", "--ranks", "1", "--backend", "nccl")
    assert refused.code == 2, refused
    assert refused.err


@pytest.mark.library
@pytest.mark.torch
def test_the_benchmarks_run() -> None:
    done = run("symmem.bench", "--ranks", "2", "--max", "4096", "--bytes", str(96 << 20))
    assert done.code == 0, done
    for words in ("scope with nothing new", "is_symmetric", "windows in", "torch.distributed us"):
        assert words in done.out


def test_a_workload_is_the_same_wherever_it_is_composed() -> None:
    config = Config(churn=100, groups=3, seed=5)
    one, two = Program.compose(config), Program.compose(config)
    assert one.steps == two.steps
    assert one.rows == two.rows
    live = 0
    for step in one.steps:
        live += {Action.MAKE: 1, Action.DROP: -1}.get(step.action, 0)
    assert live == 0, "a workload drops all that it makes"


def test_groups_of_more_than_half_overlap() -> None:
    for ranks in range(2, 9):
        for k in range(1, 2 * ranks):
            assert len(members(k, ranks)) == ranks // 2 + 1
            assert all(in_group(k, r, ranks) for r in members(k, ranks))
            assert set(members(k, ranks)) & set(members(k + 1, ranks))


def account(wrong: int, **more: Any) -> dict[str, Any]:
    finding = {"symmetric": True, "wrong": wrong, "max_diff": float(wrong), "mean_diff": 0.0}
    base = {"divergence": None, "fault": None, "paths": ["window"], "findings": [finding]}
    return {**base, **more}


@pytest.mark.parametrize(
    ("name", "accounts", "result", "code"),
    [
        ("all are right", [account(0), account(0)], "PASS", 0),
        ("one rank is wrong", [account(0), account(3)], "FAIL", 1),
        ("one has not come", [account(0), account(0, findings=[None])], "NOT RUN", 1),
        (
            "ranks differ",
            [account(0, divergence={"message": "m"}, findings=[None])] * 2,
            "DIVERGED",
            1,
        ),
        ("one ended early", [account(0, fault="f", findings=[None]), account(0)], "NOT RUN", 2),
    ],
)
def test_a_case_is_as_bad_as_its_worst_rank(
    name: str, accounts: list[dict[str, Any]], result: str, code: int
) -> None:
    rows = Program.compose(Config(cases=1, rounds=1)).rows
    report = _report.merge({"ranks": 2, "groups": 1}, rows, accounts)
    assert report["cases"][0]["result"] == result, name
    assert _report.exit_code(report) == code, name


def test_numbers_are_written_as_spans() -> None:
    assert _report.spans([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8"
    assert _report.spans([3]) == "3"
    assert _report.spans([]) == ""


def test_values_are_exact() -> None:
    assert expected(3, 4) == 30
