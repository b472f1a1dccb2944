"""Which pool a thread's allocations go to, on a PyTorch of paper."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import pytest

from symmem._routing import EAGER, Key, Nesting, Router

GRAPH: Key = (7, 0)


@dataclass
class Pool:
    id: Key


@dataclass
class Paper:
    """PyTorch's list of diverting pools, with its rule that a pool stands in it once."""

    graph: Key | None = None
    diverting: list[tuple[Key, int | None]] = field(default_factory=list)
    references: dict[Key, int] = field(default_factory=dict)
    made: int = 0
    paused: list[Key] = field(default_factory=list)
    broken: bool = False

    def capturing(self) -> bool:
        return self.graph is not None

    def new_pool(self) -> Any:
        self.made += 1
        return Pool((0, self.made))

    def begin(self, pool_id: Key) -> None:
        self._begin(pool_id, threading.get_ident())

    def begin_all(self, pool_id: Key) -> None:
        self._begin(pool_id, None)

    def _begin(self, pool_id: Key, thread: int | None) -> None:
        if self.broken:
            raise RuntimeError("out of pools")
        assert pool_id not in [p for p, _ in self.diverting], "already recording"
        self.diverting.append((pool_id, thread))
        self.references[pool_id] = self.references.get(pool_id, 0) + 1

    def end(self, pool_id: Key) -> None:
        at = [p for p, _ in self.diverting].index(pool_id)
        del self.diverting[at]
        self.references[pool_id] -= 1

    def capture_key(self) -> Key:
        assert self.graph is not None
        return self.graph

    def pause_graph(self, key: Key) -> None:
        self.paused.append(key)

    def resume_graph(self, key: Key) -> None:
        self.paused.remove(key)

    def target(self) -> Key | None:
        """Where an allocation of this thread goes; None is ordinary memory or the graph's."""
        for pool, thread in reversed(self.diverting):
            if thread in (None, threading.get_ident()):
                return pool
        return None


@pytest.fixture
def paper() -> Paper:
    return Paper()


@pytest.fixture
def router(paper: Paper) -> Router:
    return Router(paper, Nesting())


def test_a_scope_diverts_and_leaves_nothing_behind(paper: Paper, router: Router) -> None:
    for _ in range(3):
        lane = router.enter()
        assert lane is not None
        assert paper.target() == (0, 1)
        router.leave(lane)
        assert paper.target() is None
    assert paper.made == 1
    assert paper.references == {(0, 1): 0}


def test_a_scope_inside_one_of_the_same_domain_has_nothing_to_leave(
    paper: Paper, router: Router
) -> None:
    outer = router.enter()
    assert router.enter() is None
    assert paper.target() == (0, 1)
    assert outer is not None
    router.leave(outer)
    assert paper.target() is None


def test_the_innermost_of_two_domains_counts_and_the_outer_comes_back(paper: Paper) -> None:
    nesting = Nesting()
    tensor, expert = Router(paper, nesting), Router(paper, nesting)
    outer = tensor.enter()
    inner = expert.enter()
    assert paper.target() == (0, 2)
    again = tensor.enter()
    assert paper.target() == (0, 3), "the outer scope's lane is held, so the next one is taken"
    assert outer is not None
    assert inner is not None
    assert again is not None
    tensor.leave(again)
    assert paper.target() == (0, 2)
    expert.leave(inner)
    assert paper.target() == (0, 1)
    tensor.leave(outer)
    assert paper.target() is None


def test_a_second_thread_gets_a_lane_of_its_own_and_gives_it_back(
    paper: Paper, router: Router
) -> None:
    outer = router.enter()
    seen: list[Any] = []

    def backward() -> None:
        lane = router.enter()
        seen.append(paper.target())
        assert lane is not None
        router.leave(lane)
        seen.append(paper.target())

    for _ in range(2):
        thread = threading.Thread(target=backward)
        thread.start()
        thread.join()
    assert seen == [(0, 2), None, (0, 2), None]
    assert outer is not None
    router.leave(outer)


def test_all_threads_are_diverted_when_that_is_asked_for(paper: Paper, router: Router) -> None:
    lane = router.enter(all_threads=True)
    seen: list[Any] = []
    thread = threading.Thread(target=lambda: seen.append(paper.target()))
    thread.start()
    thread.join()
    assert seen == [(0, 1)]
    assert lane is not None
    router.leave(lane)


def test_a_disabled_scope_pauses_the_one_around_it(paper: Paper, router: Router) -> None:
    assert not router.pause(), "there is nothing to pause outside of scopes"
    lane = router.enter()
    assert router.pause()
    assert paper.target() is None
    assert not router.pause(), "a disabled scope inside a disabled one"
    inner = router.enter()
    assert inner is not None
    assert inner is not lane
    assert paper.target() == inner.pool_id
    router.leave(inner)
    assert paper.target() is None
    router.unpause()
    assert paper.target() == (0, 1)
    assert lane is not None
    router.leave(lane)
    assert paper.target() is None


def test_a_graph_has_lanes_of_its_own(paper: Paper, router: Router) -> None:
    eager = router.enter()
    assert eager is not None
    router.leave(eager)
    paper.graph = GRAPH
    captured = router.enter()
    assert captured is not None
    assert paper.target() == (0, 2)
    assert paper.paused == [GRAPH], "the graph's pool would win before PyTorch 2.10"
    router.leave(captured)
    assert paper.paused == []
    again = router.enter()
    assert again is captured, "graphs with one private pool share lanes"
    router.leave(captured)
    paper.graph = None
    back = router.enter()
    assert back is eager, "eager code never gets the memory of graphs"
    router.leave(eager)


def test_a_capture_inside_of_a_scope_goes_to_the_graph(paper: Paper, router: Router) -> None:
    eager = router.enter()
    paper.graph = GRAPH
    inner = router.enter()
    assert inner is not None
    assert inner.key == GRAPH
    router.leave(inner)
    paper.graph = None
    assert paper.target() == (0, 1)
    assert eager is not None
    router.leave(eager)


def test_lanes_of_dead_graphs_are_forgotten(paper: Paper, router: Router) -> None:
    for graph in (GRAPH, (8, 0)):
        paper.graph = graph
        lane = router.enter()
        assert lane is not None
        router.leave(lane)
    assert router.forget(lambda key: key == GRAPH) == 1
    assert set(router.lanes) == {GRAPH}
    assert EAGER not in router.lanes


def test_a_lane_that_could_not_be_entered_is_free_again(paper: Paper, router: Router) -> None:
    lane = router.enter()
    assert lane is not None
    router.leave(lane)
    paper.broken = True
    with pytest.raises(RuntimeError, match="out of pools"):
        router.enter()
    paper.broken = False
    assert router.enter() is lane
    router.leave(lane)
    assert paper.diverting == []


def test_reset_drops_the_lanes_that_nobody_holds(paper: Paper, router: Router) -> None:
    lane = router.enter()
    router.reset()
    assert router.lanes[EAGER] == [lane], "an open scope keeps its lane"
    assert lane is not None
    router.leave(lane)
    router.reset()
    assert EAGER not in router.lanes
    fresh = router.enter()
    assert fresh is not lane
    assert fresh is not None
    router.leave(fresh)
