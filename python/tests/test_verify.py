"""Tests `python -m symmem.verify` on the host backend."""

from __future__ import annotations

import os
import re
import sys

import processes
import pytest
from processes import SOURCE, Result, run_ranks

pytestmark = [pytest.mark.library, pytest.mark.torch]


def forked(ranks: int, *arguments: str) -> list[Result]:
    """Run symmem.verify on forked ranks, which must all have the same exit code."""
    results = run_ranks("verify.py", ranks, "--backend", "host", *arguments)
    assert len({r.code for r in results}) == 1, results
    return results


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_sums_are_correct(ranks: int) -> None:
    first, *others = forked(ranks, "--rounds", "1", "--callsites")
    assert first.code == 0, first
    line = rf"{ranks} ranks on the host backend, path window: \d+ sums on rank 0, 0 wrong on all"
    assert re.match(line, first.out), first
    assert int(first.out.split()[8]) > 10, "want a sum in most of the steps that sum"
    assert [r.out for r in others] == [""] * (ranks - 1)


def test_wrong_sums_are_detected() -> None:
    first, second = forked(2, "--by-address", "--check", "off")
    assert first.code == 1
    assert not re.search(r" 0 wrong on all ranks", first.out), first
    found = re.findall(r"\[rank \d\] sum \d+, .*: \d+ of \d+ elements are wrong", second.err)
    assert found, second


def test_a_divergence_is_reported() -> None:
    first, second = forked(2, "--by-address", "--check", "every")
    assert first.code == 1
    assert first.out == second.out == ""
    for rank, result in enumerate((first, second)):
        assert f"[rank {rank}]" in result.err
        assert "differ" in result.err, result


def test_exit_code_2_if_it_cannot_run() -> None:
    refused = run_ranks("verify.py", 1, "--backend", "nccl", env={"SYMMEM_CUDA": "/nowhere"})[0]
    assert refused.code == 2, refused
    assert "[rank 0]" in refused.err


def test_without_a_launcher_it_suggests_one() -> None:
    env = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
    env["PYTHONPATH"] = str(SOURCE)
    done = processes.run(sys.executable, "-m", "symmem.verify", env=env)
    assert done.code == 2, done
    assert "symmem launch -n 2 -- python" in done.err
