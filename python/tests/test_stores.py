"""Tests initializing symmem with each kind of PyTorch store."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest
from conftest import Start

from symmem._rank import rendezvous

pytestmark = [pytest.mark.library, pytest.mark.torch]

PROGRAM = "stores.py"


@pytest.mark.parametrize(
    ("kind", "size"), [("tcp", 3), ("file", 3), ("prefix of file", 2), ("hash", 1)]
)
def test_waiting_for_a_late_rank_prints_nothing(
    start: Start, tmp_path: Path, kind: str, size: int
) -> None:
    for result in start(PROGRAM, size, kind, str(tmp_path)):
        assert (result.code, result.out) == (0, f"SUM {float(size)}\n"), result
        # PyTorch writes two lines for each wait that times out.
        assert not re.search("time(d )?out", result.err), result


def test_a_warning_names_a_late_rank(start: Start, tmp_path: Path) -> None:
    *others, last = start(PROGRAM, 3, "warned", str(tmp_path))
    assert (last.code, last.out) == (0, "END\n"), last
    for result in others:
        assert "END [2] True opening symmem: still waiting for rank 2 of 3 after" in result.out, (
            result
        )


def test_an_unresponsive_store_is_reported_after_the_timeout(start: Start, tmp_path: Path) -> None:
    _, second = start(PROGRAM, 2, "stopped", str(tmp_path))
    assert "END True" in second.out, second
    assert "the store of torch.distributed did not answer within" in second.out, second


def test_a_fake_store_is_reported(start: Start, tmp_path: Path) -> None:
    (only,) = start(PROGRAM, 1, "fake", str(tmp_path))
    assert only.code == 0, only
    assert "END opening symmem: the store of torch.distributed" in only.out, only


class Slow:
    """A store where a key appears at the tenth check. It records the calling threads."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []

    def add(self, _key: str, amount: int) -> int:
        self.threads.append(threading.current_thread())
        return amount

    def check(self, _keys: list[str]) -> bool:
        self.threads.append(threading.current_thread())
        return len(self.threads) >= 10

    def get(self, _key: str) -> bytes:
        return b"here"


def test_a_store_is_polled_by_one_thread() -> None:
    store = Slow()
    with rendezvous.Meeting(store, rank=0, size=1, timeout=60, warn_after=-1) as meeting:
        assert meeting.await_values("key") == ["here"]
    assert len(set(store.threads)) == 1
    store.threads[0].join(timeout=60)
    assert not store.threads[0].is_alive()
