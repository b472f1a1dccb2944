"""Tests the code for CUDA with a fake of PyTorch."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from symmem import errors
from symmem._c.constants import Note
from symmem._torch import places
from symmem._torch.attach import Attachments, communicator
from symmem._torch.cuda import (
    NO_POOL,
    Captures,
    CudaPools,
    TorchHooks,
    completes_within,
    live_pools,
    own_stream,
)
from symmem._torch.routing import EAGER


def segment(address: int, size: int, pool: tuple[int, int], *blocks: tuple[int, str]) -> Any:
    made, at = [], address
    for nbytes, state in blocks:
        made.append({"address": at, "size": nbytes, "state": state})
        at += nbytes
    return {"address": address, "total_size": size, "segment_pool_id": pool, "blocks": made}


@dataclass
class PaperTorch:
    """Fakes the parts of PyTorch that the code for CUDA uses."""

    segments: list[Any] = field(default_factory=list)
    calls: list[Any] = field(default_factory=list)
    nested_pools: bool = True
    landed: int = 0

    @property
    def module(self) -> Any:
        def memory_snapshot(mempool_id: Any = None, include_traces: bool = True) -> Any:
            self.calls.append(("snapshot", include_traces))
            return self.segments

        cuda = SimpleNamespace(
            memory_snapshot=memory_snapshot,
            empty_cache=lambda: self.calls.append("empty_cache"),
            MemPool=lambda allocator: SimpleNamespace(id=(0, 7), allocator=allocator),
            memory=SimpleNamespace(
                CUDAPluggableAllocator=lambda *names: SimpleNamespace(allocator=lambda: names)
            ),
        )
        element = SimpleNamespace(data_ptr=lambda: self.landed)
        return SimpleNamespace(
            cuda=cuda,
            uint8="uint8",
            empty=lambda *_, **__: element,
        )

    def is_capturing(self) -> bool:
        return False

    def begin(self, device: int, pool: Any) -> None:
        self.calls.append(("begin", device, pool))

    def begin_all(self, device: int, pool: Any) -> None:
        self.calls.append(("begin_all", device, pool))

    def end(self, device: int, pool: Any) -> None:
        self.calls.append(("end", device, pool))

    def release(self, device: int, pool: Any) -> None:
        self.calls.append(("release", device, pool))

    def raw_stream(self, device: int) -> int:
        return 100 + device


def pools(paper: PaperTorch) -> CudaPools:
    return CudaPools(cast(Any, paper), cast(Any, SimpleNamespace(path="/lib.so")), 3)


def test_a_lane_calls_pytorch_with_its_device_and_pool() -> None:
    paper = PaperTorch()
    router = pools(paper).router(2)
    router.enter(all_threads=True)
    router.leave()
    router.enter()
    router.leave()
    pool = (0, 7)
    done = [("end", 3, pool), ("release", 3, pool)]
    assert paper.calls == [("begin_all", 3, pool), *done, ("begin", 3, pool), *done]


def test_each_pool_has_its_own_allocator() -> None:
    found = pools(PaperTorch())
    one, two = found.router(0), found.router(15)
    one.enter()
    two.enter()
    names = [r.lanes[EAGER][0].pool.allocator for r in (one, two)]
    assert names == [
        ("/lib.so", "symmem_torch_alloc_0", "symmem_torch_free"),
        ("/lib.so", "symmem_torch_alloc_15", "symmem_torch_free"),
    ]
    assert found.router(0) is one
    with pytest.raises(errors.UnsupportedError):
        found.router(16)


@pytest.mark.parametrize(
    ("name", "landed", "key"),
    [
        ("in the graph's pool", 4096 + 512, (9, 0)),
        ("in no private pool", 100, (NO_POOL, 5)),
        ("nowhere that is listed", 1 << 40, (NO_POOL, 5)),
    ],
)
def test_a_capture_is_identified_by_probing_its_pool(
    name: str, landed: int, key: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    paper = PaperTorch(landed=landed)
    paper.segments = [segment(0, 4096, (0, 0)), segment(4096, 4096, (9, 0))]
    numbers = iter([5, 5, 6])
    monkeypatch.setattr("symmem._torch.cuda.capture_id", lambda stream: next(numbers))
    hooks = TorchHooks(cast(Any, paper), 0, None, Captures())
    assert hooks.capture_key() == key, name
    assert hooks.capture_key() == key
    assert paper.calls == [("snapshot", False)], (
        "want one snapshot per capture, without the history"
    )
    hooks.capture_key()
    assert len(paper.calls) == 2, "want a new snapshot for another capture"


def test_a_nested_scope_finds_the_graph(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    paper = PaperTorch(landed=4096)
    paper.segments = [segment(4096, 4096, (9, 0)), segment(8192, 4096, (0, 7))]
    monkeypatch.setattr("symmem._torch.cuda.capture_id", lambda stream: 5)
    found = pools(paper)
    outer, inner = (found.router(n).hooks for n in (0, 1))
    assert outer.capture_key() == (9, 0)
    paper.landed = 8192  # new memory comes from the pool of the outer scope
    assert inner.capture_key() == (9, 0)


def test_the_graph_is_paused_only_if_it_takes_precedence() -> None:
    for nested in (True, False):
        paper = PaperTorch(nested_pools=nested)
        hooks = TorchHooks(cast(Any, paper), 0, None, Captures())
        hooks.pause_graph((9, 0))
        hooks.resume_graph((9, 0))
        again = [("end", 0, (9, 0)), ("begin", 0, (9, 0)), ("release", 0, (9, 0))]
        assert paper.calls == ([] if nested else again)


def test_pools_with_memory_are_alive() -> None:
    paper = PaperTorch(segments=[segment(0, 1, (0, 0)), segment(1, 1, (4, 0))])
    assert live_pools(cast(Any, paper)) == {(0, 0), (4, 0)}
    assert paper.calls[0] == "empty_cache"


class PaperLibrary:
    """Fakes the library and stores the notes."""

    def __init__(self) -> None:
        self.notes: list[tuple[int, int]] = []

    def json(self, name: str, address: int) -> dict[str, int]:
        assert name == "symmem_locate"
        return {"segment": address // 10_000, "offset": address % 10_000}

    def call(self, name: str, pool: int, kind: int, value: int) -> None:
        assert (name, pool) == ("symmem_note", 0)
        self.notes.append((kind, value))


def layout(*addresses: int) -> list[tuple[int, int]]:
    """Record tensors in segments at these addresses. The second half of each is free."""
    paper = PaperTorch()
    found = pools(paper)
    found.router(0).enter()
    paper.segments = [segment(77, 4096, (5, 5), (4096, "active_allocated"))]
    for address in addresses:
        blocks = [(512, "active_allocated"), (512, "inactive")]
        paper.segments.append(segment(address, 1024, (0, 7), *blocks))
    library = PaperLibrary()
    places.note_blocks(found, cast(Any, library), 0)
    places.note_layout(found, cast(Any, library), 0)
    return library.notes


def test_every_block_is_recorded_by_place() -> None:
    notes = layout(10_000)
    assert notes[:4] == [
        (Note.TENSOR_AT, 1 << 44),
        (Note.TENSOR_BYTES, 512),
        (Note.FREE_AT, (1 << 44) + 512),
        (Note.FREE_BYTES, 512),
    ]
    assert notes[4][0] == Note.LAYOUT
    assert len(notes) == 5
    assert layout(10_000, 20_000)[-1] == layout(20_000, 10_000)[-1], (
        "want blocks in the order of places"
    )
    assert layout(10_000, 20_000)[-1] != layout(10_000, 20_512)[-1]


@dataclass
class PaperComm:
    """A process group that creates its communicator on first use."""

    group_name: str = "tp"
    pointer: int = 0

    def _get_backend(self, device: Any) -> Any:
        def pointer() -> int:
            if not self.pointer:
                raise RuntimeError("not initialized")
            return self.pointer

        return SimpleNamespace(_comm_ptr=pointer)


class PaperWorld:
    """Fakes torch.distributed and the library's attachments."""

    def __init__(self) -> None:
        self.pg_map: dict[Any, Any] = {}
        self.calls: list[Any] = []
        self.synchronized = 0

    @property
    def torch(self) -> Any:
        def synchronize(device: Any = None) -> None:
            self.synchronized += 1

        def all_reduce(tensor: Any, group: Any) -> None:
            group.pointer = 0xABC

        module = SimpleNamespace(
            device=lambda *_: None,
            zeros=lambda *_, **__: None,
            cuda=SimpleNamespace(synchronize=synchronize),
            __version__="2.11",
        )
        distributed = SimpleNamespace(
            distributed_c10d=SimpleNamespace(_world=self), all_reduce=all_reduce
        )
        return lambda: SimpleNamespace(
            module=module, distributed=distributed, is_capturing=lambda: False
        )

    def number(self, name: str, *arguments: Any) -> int:
        self.calls.append((name, *arguments))
        return len(self.calls)

    def call(self, name: str, *arguments: Any) -> None:
        self.calls.append((name, *arguments))


class Unhashed(PaperComm):
    __hash__ = object.__hash__


def test_a_communicator_is_attached_once_and_dropped_when_destroyed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, first, second = PaperWorld(), Unhashed("tp"), Unhashed("dp", 0xDEF)
    world.pg_map = {first: 1, second: 1}
    monkeypatch.setattr("symmem._torch.pytorch.pytorch", world.torch)
    monkeypatch.setattr("symmem._torch.attach.pytorch", world.torch)
    attachments = Attachments(cast(Any, world))
    made = attachments.attach(first, 42, 0)
    assert attachments.attach(first, 42, 0) is made
    attachments.attach(second, 42, 0)
    assert world.calls == [
        ("symmem_attach", 42, 0xABC, 4, b"tp 0"),
        ("symmem_attach", 42, 0xDEF, 4, b"dp 1"),
    ]
    del world.pg_map[second]
    before = world.synchronized
    attachments.wait_idle(42)
    assert world.calls[-1] == ("symmem_detach", 2, 0), "it was destroyed without a detach"
    assert world.synchronized == before + 1
    assert attachments.detach(first)
    assert not attachments.detach(first)
    assert world.calls[-1] == ("symmem_detach", 1, 1)


@pytest.mark.parametrize("made_anew", [False, True])
@pytest.mark.parametrize("use", ["detach", "wait_idle", "detach_all", "attach"])
def test_an_aborted_communicator_is_not_used(
    monkeypatch: pytest.MonkeyPatch, use: str, made_anew: bool
) -> None:
    world, aborted, other = PaperWorld(), Unhashed("tp", 0xABC), Unhashed("dp", 0xDEF)
    world.pg_map = {aborted: 1, other: 1}
    monkeypatch.setattr("symmem._torch.pytorch.pytorch", world.torch)
    monkeypatch.setattr("symmem._torch.attach.pytorch", world.torch)
    attachments = Attachments(cast(Any, world))
    attachments.attach(aborted, 42, 0)
    attachments.attach(other, 42, 0)
    # The process group remains, without a communicator or with a new one.
    aborted.pointer = 0x123 if made_anew else 0
    del world.calls[:]
    if use == "detach":
        assert attachments.detach(aborted)
    elif use == "wait_idle":
        attachments.wait_idle(42)
    elif use == "attach":
        attachments.attach(other, 42, 0)
    else:
        attachments.detach_all()
    assert ("symmem_detach", 1, 0) in world.calls, (
        "the windows were destroyed with the communicator"
    )
    assert ("symmem_detach", 1, 1) not in world.calls
    assert (("symmem_detach", 2, 1) in world.calls) == (use == "detach_all")


def test_a_backend_without_a_communicator_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("symmem._torch.pytorch.pytorch", PaperWorld().torch)
    gloo = SimpleNamespace(_get_backend=lambda device: SimpleNamespace())
    with pytest.raises(errors.TorchError, match="does not expose its communicator"):
        communicator(gloo, 0)


class PaperDriver:
    """Fakes libcuda. The first `cuStreamCreate` fails, and later ones return 65, 66 and so on."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            self.calls.append((name, *arguments))
            if name != "cuStreamCreate":
                return 0
            made = sum(one[0] == name for one in self.calls)
            arguments[0]._obj.value = 63 + made
            return 2 if made == 1 else 0

        return call

    def names(self) -> list[str]:
        return [one[0] for one in self.calls]


def test_each_device_has_a_stream_that_is_not_in_the_pool(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = PaperDriver()
    cuda = SimpleNamespace(ExternalStream=lambda number, device: (number, device))
    paper = SimpleNamespace(module=SimpleNamespace(cuda=cuda))
    monkeypatch.setattr("symmem._torch.cuda._driver", lambda: driver)
    monkeypatch.setattr("symmem._torch.cuda.pytorch", lambda: paper)
    own_stream.cache_clear()
    with pytest.raises(errors.SymmemError, match="cuStreamCreate failed with CUresult 2"):
        own_stream(1)
    assert driver.names()[-1] == "cuCtxPopCurrent_v2", "the context must not stay current"
    assert [own_stream(d) for d in (1, 0, 1)] == [(65, 1), (66, 0), (65, 1)]
    flags = {one[2] for one in driver.calls if one[0] == "cuStreamCreate"}
    assert flags == {1}, "the stream must not wait for the default stream"
    assert driver.names().count("cuCtxPushCurrent_v2") == 3
    assert driver.names().count("cuCtxPopCurrent_v2") == 3
    own_stream.cache_clear()


def test_a_forced_close_limits_its_wait_for_the_device() -> None:
    hangs = threading.Event()

    def fails() -> None:
        raise RuntimeError("an illegal memory access was encountered")

    assert completes_within(60, lambda: None)
    assert completes_within(60, fails), "a failed device has no work in progress"
    assert not completes_within(0.01, hangs.wait)
    hangs.set()
