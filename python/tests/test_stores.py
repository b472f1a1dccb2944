"""Opening symmem through each kind of PyTorch's stores."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conftest import Start

pytestmark = [pytest.mark.library, pytest.mark.torch]

PROGRAM = "stores.py"


@pytest.mark.parametrize(
    ("kind", "size"), [("tcp", 3), ("file", 3), ("prefix of file", 2), ("hash", 1)]
)
def test_a_late_rank_is_waited_for_in_silence(
    start: Start, tmp_path: Path, kind: str, size: int
) -> None:
    for result in start(PROGRAM, size, kind, str(tmp_path)):
        assert (result.code, result.out) == (0, f"SUM {float(size)}\n"), result
        # PyTorch writes two lines for each wait that ends so.
        assert not re.search("time(d )?out", result.err), result


def test_a_late_rank_is_warned_of(start: Start, tmp_path: Path) -> None:
    *others, last = start(PROGRAM, 3, "warned", str(tmp_path))
    assert (last.code, last.out) == (0, "END\n"), last
    for result in others:
        assert "END [2] True opening symmem: still waiting for rank 2 of 3 after" in result.out, (
            result
        )


def test_a_store_that_does_not_answer_is_named_at_the_timeout(start: Start, tmp_path: Path) -> None:
    _, second = start(PROGRAM, 2, "stopped", str(tmp_path))
    assert "END True" in second.out, second
    assert "the store of torch.distributed did not answer within" in second.out, second


def test_a_store_that_holds_nothing_is_named(start: Start, tmp_path: Path) -> None:
    (only,) = start(PROGRAM, 1, "fake", str(tmp_path))
    assert only.code == 0, only
    assert "END the store of torch.distributed" in only.out, only
