"""Tests which pool a thread allocates from, with a fake of PyTorch."""

from __future__ import annotations

import threading
import warnings
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from symmem import errors
from symmem._rank.runtime import Current
from symmem._rank.scope import scopes_of
from symmem._torch.routing import EAGER, Calls, Key, Lane, Nesting, Router

GRAPH: Key = (7, 0)


@dataclass
class Pool:
    id: Key


@dataclass
class Paper:
    """Fakes PyTorch's list of diverting pools, which may contain a pool only once."""

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

    def bind(self, pool_id: Key) -> Calls:
        return Calls(
            lambda: self._begin(pool_id, threading.get_ident()),
            lambda: self._begin(pool_id, None),
            lambda: self._end(pool_id),
            lambda: self._drop(pool_id),
        )

    def _begin(self, pool_id: Key, thread: int | None) -> None:
        if self.broken:
            raise RuntimeError("out of pools")
        assert pool_id not in [p for p, _ in self.diverting], "already recording"
        self.diverting.append((pool_id, thread))
        self.references[pool_id] = self.references.get(pool_id, 0) + 1

    def _end(self, pool_id: Key) -> None:
        at = [p for p, _ in self.diverting].index(pool_id)
        del self.diverting[at]

    def _drop(self, pool_id: Key) -> None:
        self.references[pool_id] -= 1

    def capture_key(self) -> Key:
        assert self.graph is not None
        return self.graph

    def pause_graph(self, key: Key) -> None:
        self.paused.append(key)

    def resume_graph(self, key: Key) -> None:
        self.paused.remove(key)

    def target(self) -> Key | None:
        """Return the pool that this thread allocates from, or None for ordinary or graph memory."""
        for pool, thread in reversed(self.diverting):
            if thread in (None, threading.get_ident()):
                return pool
        return None


def entered(router: Router, all_threads: bool = False) -> Lane:
    """Enter a scope and return its lane."""
    router.enter(all_threads)
    lane = router.nesting.stack[-1]
    assert lane is not None
    return lane


@pytest.fixture
def paper() -> Paper:
    return Paper()


@pytest.fixture
def router(paper: Paper) -> Router:
    return Router(paper, Nesting())


def test_a_scope_diverts_until_it_ends(paper: Paper, router: Router) -> None:
    for _ in range(3):
        entered(router)
        assert paper.target() == (0, 1)
        router.leave()
        assert paper.target() is None
    assert paper.made == 1
    assert paper.references == {(0, 1): 0}


def test_a_nested_scope_of_the_same_domain_changes_nothing(paper: Paper, router: Router) -> None:
    entered(router)
    entered(router)
    assert paper.target() == (0, 1)
    router.leave()
    assert paper.target() == (0, 1)
    router.leave()
    assert paper.target() is None
    assert paper.made == 1


def test_the_innermost_domain_applies_and_the_outer_is_restored(paper: Paper) -> None:
    nesting = Nesting()
    tensor, expert = Router(paper, nesting), Router(paper, nesting)
    entered(tensor)
    entered(expert)
    assert paper.target() == (0, 2)
    entered(tensor)
    assert paper.target() == (0, 3), "the outer scope's lane is held, so the next one is taken"
    tensor.leave()
    assert paper.target() == (0, 2)
    expert.leave()
    assert paper.target() == (0, 1)
    tensor.leave()
    assert paper.target() is None


def test_a_second_thread_uses_its_own_lane(paper: Paper, router: Router) -> None:
    entered(router)
    seen: list[Any] = []

    def backward() -> None:
        entered(router)
        seen.append(paper.target())
        router.leave()
        seen.append(paper.target())

    for _ in range(2):
        thread = threading.Thread(target=backward, daemon=True)
        thread.start()
        thread.join()
    assert seen == [(0, 2), None, (0, 2), None]
    router.leave()


def test_all_threads_can_be_diverted(paper: Paper, router: Router) -> None:
    entered(router, all_threads=True)
    seen: list[Any] = []
    thread = threading.Thread(target=lambda: seen.append(paper.target()), daemon=True)
    thread.start()
    thread.join()
    assert seen == [(0, 1)]
    router.leave()


def test_a_disabled_scope_pauses_the_one_around_it(paper: Paper, router: Router) -> None:
    router.pause()
    router.unpause()
    lane = entered(router)
    router.pause()
    assert paper.target() is None
    router.pause()
    router.unpause()
    assert paper.target() is None, "a disabled scope inside another one"
    inner = entered(router)
    assert inner is not lane
    assert paper.target() == inner.pool_id
    router.leave()
    assert paper.target() is None
    router.unpause()
    assert paper.target() == (0, 1)
    router.leave()
    assert paper.target() is None


def test_a_graph_has_its_own_lanes(paper: Paper, router: Router) -> None:
    eager = entered(router)
    router.leave()
    paper.graph = GRAPH
    captured = entered(router)
    assert paper.target() == (0, 2)
    assert paper.paused == [GRAPH], "before PyTorch 2.11 the graph's pool takes precedence"
    router.leave()
    assert paper.paused == []
    again = entered(router)
    assert again is captured, "graphs with one private pool share lanes"
    router.leave()
    paper.graph = None
    back = entered(router)
    assert back is eager, "eager code never gets the memory of graphs"
    router.leave()


def test_a_capture_inside_a_scope_uses_the_graphs_lanes(paper: Paper, router: Router) -> None:
    entered(router)
    paper.graph = GRAPH
    inner = entered(router)
    assert inner.key == GRAPH
    router.leave()
    paper.graph = None
    assert paper.target() == (0, 1)
    router.leave()


def test_lanes_of_dead_graphs_are_dropped(paper: Paper, router: Router) -> None:
    for graph in (GRAPH, (8, 0)):
        paper.graph = graph
        entered(router)
        router.leave()
    assert router.forget(lambda key: key == GRAPH) == 1
    assert set(router.lanes) == {GRAPH}
    assert EAGER not in router.lanes


def test_a_lane_that_could_not_be_entered_is_freed(paper: Paper, router: Router) -> None:
    lane = entered(router)
    router.leave()
    paper.broken = True
    with pytest.raises(RuntimeError, match="out of pools"):
        router.enter()
    paper.broken = False
    assert entered(router) is lane
    router.leave()
    assert paper.diverting == []


def test_reset_drops_free_lanes(paper: Paper, router: Router) -> None:
    lane = entered(router)
    router.reset()
    assert router.lanes[EAGER] == [lane], "an open scope keeps its lane"
    router.leave()
    router.reset()
    assert EAGER not in router.lanes
    fresh = entered(router)
    assert fresh is not lane
    router.leave()


@dataclass
class PaperGroup:
    """Fakes the parts of a group, a runtime and the library that scopes use."""

    router: Router
    callsites: bool = False
    handle: int = 42
    pool: int = 0
    seen: int = 0
    ended: int = 0
    words: list[int] = field(default_factory=lambda: [0])

    @property
    def library(self) -> Any:
        return self

    @property
    def runtime(self) -> Any:
        return self

    def require(self) -> None:
        pass

    def stream(self) -> int:
        return 0

    @property
    def attachments(self) -> Any:
        return self

    def wait_idle(self, group: int) -> None:
        assert group == self.handle

    def end_scope(self, stream: int) -> None:
        self.ended += 1
        self.seen = self.words[0]


def test_a_scope_registers_only_new_memory(paper: Paper, router: Router) -> None:
    group = PaperGroup(router)
    scope = scopes_of(cast(Any, group)).plain
    for _ in range(3):
        with scope:
            assert paper.target() == (0, 1)
            with scope:
                assert paper.target() == (0, 1)
    assert group.ended == 0
    group.words[0] = 7
    with pytest.raises(KeyError), scope:
        raise KeyError
    assert group.ended == 0, "a scope that ends with an exception registers nothing"
    with scope:
        pass
    assert group.ended == 1
    assert paper.target() is None
    assert paper.references == {(0, 1): 0}


def test_growth_in_a_capture_warns_once_per_segment(
    router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = cast(Any, PaperGroup(router))
    group.warned = 0

    def refused(stream: int) -> None:
        raise errors.CapturingError("the stream is being captured")

    monkeypatch.setattr(group, "end_scope", refused)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for new in (7, 7, 8):
            group.words[0] = new
            with scopes_of(group).plain:
                pass
    assert [w.category for w in seen] == [errors.GrowthInCaptureWarning] * 2, seen


def test_scopes_with_call_sites_record_layouts_unless_disabled(
    paper: Paper, router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: list[Any] = []
    monkeypatch.setattr(
        "symmem._rank.scope.note_layout", lambda cuda, library, pool: noted.append(paper.target())
    )
    group = cast(Any, PaperGroup(router, callsites=True))
    group.current, group.cuda = Current(), "cuda"
    group.set_site = lambda: 0
    group.raw = group
    group.symmem_set_site = lambda site: site
    scopes = scopes_of(group)
    with scopes.plain, scopes.disabled:
        pass
    assert noted == [(0, 1)]
    with pytest.raises(KeyError), scopes.threads:
        raise KeyError
    assert noted == [(0, 1)], "layouts are not recorded after an exception"
    assert group.current.sites == []


def test_scopes_on_two_threads_use_two_lanes(paper: Paper, router: Router) -> None:
    scopes = scopes_of(cast(Any, PaperGroup(router)))
    seen: list[Any] = []

    def backward() -> None:
        with scopes.plain:
            seen.append(paper.target())
            with scopes.disabled:
                seen.append(paper.target())

    with scopes.plain:
        thread = threading.Thread(target=backward, daemon=True)
        thread.start()
        thread.join()
        assert paper.target() == (0, 1)
    with scopes.threads:
        assert paper.target() == (0, 1)
    assert seen == [(0, 2), None]
    assert paper.diverting == []


def test_a_scope_in_a_capture_uses_the_graphs_lanes(paper: Paper, router: Router) -> None:
    scope = scopes_of(cast(Any, PaperGroup(router))).plain
    with scope:
        pass
    paper.graph = GRAPH
    with scope:
        assert paper.target() == (0, 2)
    paper.graph = None
    with scope:
        assert paper.target() == (0, 1)
