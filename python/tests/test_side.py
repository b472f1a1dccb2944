"""Tests how long works on a side stream keep tensors, with a fake of PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from symmem._rank.work import MOST_KEPT, SideStream


@dataclass(frozen=True)
class PaperTensor:
    """A tensor at an address."""

    address: int

    def data_ptr(self) -> int:
        return self.address


SYMMETRIC, PLAIN = PaperTensor(4096), PaperTensor(64)


class PaperEvent:
    """An event that the test completes."""

    made: list[PaperEvent]

    def __init__(self) -> None:
        self.done, self.waits = False, 0
        self.made.append(self)

    def record(self, stream: Any) -> None:
        pass

    def wait(self) -> None:
        self.waits += 1

    def query(self) -> bool:
        return self.done


@pytest.fixture
def side(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A side stream and its events. SYMMETRIC is in a pool, and PLAIN is not."""
    monkeypatch.setattr(PaperEvent, "made", [], raising=False)
    state = SimpleNamespace(capturing=False)
    cuda = SimpleNamespace(
        Stream=lambda device: SimpleNamespace(cuda_stream=7, wait_stream=lambda other: None),
        Event=PaperEvent,
        current_stream=lambda: None,
    )
    paper = SimpleNamespace(module=SimpleNamespace(cuda=cuda), is_capturing=lambda: state.capturing)
    monkeypatch.setattr("symmem._rank.work.pytorch", lambda: paper)
    monkeypatch.setattr("symmem._rank.work.of_torch", lambda kind: kind)
    library: Any = SimpleNamespace(in_pool=lambda address: address == SYMMETRIC.data_ptr())
    made = SideStream(library, 1, 0)
    return SimpleNamespace(stream=made, state=state, events=PaperEvent.made)


def held(works: list[Any]) -> int:
    return sum(bool(w.tensors) for w in works)


def test_works_without_waits_keep_few_symmetric_tensors(side: Any) -> None:
    works = []
    for _ in range(10 * MOST_KEPT):
        works.append(side.stream.work([SYMMETRIC], []))
        side.events[-1].done = True
    assert held(works) <= MOST_KEPT
    waits = [e.waits for e in side.events]
    assert 0 < sum(waits) <= len(waits) // (MOST_KEPT // 2)


def test_the_release_of_symmetric_tensors_does_not_depend_on_timing(side: Any) -> None:
    """On a slow rank no work is complete, but the waits must be the same."""
    works = [side.stream.work([SYMMETRIC], []) for _ in range(10 * MOST_KEPT)]
    assert held(works) <= MOST_KEPT
    assert side.events[MOST_KEPT // 2].waits == 1


def test_other_tensors_are_released_on_completion(side: Any) -> None:
    first = side.stream.work([PLAIN], [])
    side.events[-1].done = True
    side.stream.work([PLAIN], [])
    assert first not in side.stream._unwaited
    assert [e.waits for e in side.events] == [0, 0]


def test_a_captured_work_does_not_block_later_ones(side: Any) -> None:
    side.state.capturing = True
    side.stream.work([SYMMETRIC], [])
    side.state.capturing = False
    works = []
    for _ in range(5):
        works.append(side.stream.work([PLAIN], []))
        side.events[-1].done = True
    assert list(side.stream._unwaited) == works[-1:]
