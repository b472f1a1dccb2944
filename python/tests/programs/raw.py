"""Tests the layer below PyTorch: blocks, scopes, groups, and collectives by address."""

from __future__ import annotations

import array
import ctypes
import gc
import os
import sys
import threading
from functools import partial

from harness import RANK, SIZE, check, main, raises

import symmem
from symmem._c.constants import Path, Type
from symmem._c.terms import Reduction

COUNT = 1 << 14


def floats(block: symmem.Block) -> memoryview:
    return memoryview(block.view).cast("B").cast("f")


def all_reduce(block: symmem.Block, group: symmem.Group, count: int = COUNT) -> None:
    group.library.call(
        "symmem_all_reduce",
        group.handle,
        count,
        Type.FLOAT32,
        Reduction.SUM,
        Path.DEFAULT,
        block.address,
        block.address,
        0,
    )
    group.library.call("symmem_stream_synchronize", 0)


@check
def the_world_has_all_ranks() -> None:
    assert "torch" not in sys.modules, "importing symmem imports torch"
    assert ctypes.CDLL(symmem.library_path()).symmem_abi_version() > 0
    for wrong in (0, -1, 86_401, float("nan"), float("inf")):
        error = raises(symmem.InvalidError, partial(symmem.init, backend="host", timeout=wrong))
        assert "timeout" in str(error), error
    world = symmem.init(backend="host", timeout=20)
    assert (world.rank, world.size) == (RANK, SIZE)
    assert symmem.is_initialized()
    assert symmem.init(backend="host") is world
    assert symmem.init() is world
    error = raises(symmem.InvalidError, lambda: symmem.init(backend="host", timeout=21))
    assert "timeout_ms 20000 instead of 21000" in str(error), error
    error = raises(symmem.InvalidError, lambda: symmem.init(backend="nccl"))
    assert "backend 'host' instead of 'nccl'" in str(error), error


@check
def sums_on_windows_are_correct() -> None:
    world = symmem.world()
    with symmem.use(world) as group:
        block = symmem.alloc(4 * COUNT)
    values = floats(block)
    values[:] = memoryview(array.array("f", [RANK + 1.0] * COUNT))
    all_reduce(block, group)
    assert set(values) == {SIZE * (SIZE + 1) / 2}
    _, starts, _ = group.windows.refresh()
    assert starts, "the end of the scope registered no window"


@check
def a_scope_without_new_memory_makes_no_call() -> None:
    world = symmem.world()
    with symmem.use(world):
        pass
    assert not world.pending()
    before = symmem.stats()["groups"]
    for _ in range(100):
        with symmem.use(world):
            pass
    assert symmem.stats()["groups"] == before


@check
def a_block_is_freed_with_its_last_view() -> None:
    pool = symmem.world().pool
    gc.collect()
    used = symmem.stats()["pools"][pool]["used"]
    block = symmem.alloc(1 << 20)
    view = memoryview(block.view)[5:9]
    del block
    gc.collect()
    assert symmem.stats()["pools"][pool]["used"] > used
    del view
    gc.collect()
    symmem.check()
    assert symmem.stats()["pools"][pool]["used"] == used


@check
def scopes_nest_and_exceptions_end_them() -> None:
    world = symmem.world()

    def broken() -> None:
        with symmem.use(world), symmem.use(world):
            symmem.alloc(4096)
            raise KeyError("inside")

    raises(KeyError, broken)
    assert symmem.stats()["pools"][world.pool]["live"] >= 0
    with symmem.use(world):
        with symmem.use(world, disabled=True):
            own = symmem.alloc(1 << 16)
        block = symmem.alloc(1 << 16)
    _, starts, ends = world.windows.refresh()

    def inside(address: int) -> bool:
        return any(a <= address < b for a, b in zip(starts, ends, strict=True))

    assert inside(block.address)
    assert not inside(own.address)


@check
def groups_share_memory_only_with_a_domain() -> None:
    world = symmem.world()
    everyone = list(range(SIZE))
    again = symmem.group(everyone, name="again")
    assert again.pool == world.pool, "groups with the same ranks share memory"
    pair = [r for r in everyone if r // 2 == RANK // 2]
    mine = symmem.group(pair, name=f"pair {pair}")
    assert (mine.pool == world.pool) == (SIZE == 2)
    shared = symmem.group(pair, domain=world, name=f"shared {pair}")
    assert shared.pool == world.pool
    assert symmem.group(f"pair {pair}") is mine
    with symmem.use(mine):
        block = symmem.alloc(4 * COUNT)
    floats(block)[:] = memoryview(array.array("f", [RANK + 1.0] * COUNT))
    all_reduce(block, mine)
    assert set(floats(block)) == {float(sum(r + 1 for r in pair))}
    raises(symmem.InvalidError, lambda: symmem.group([(RANK + 1) % SIZE], name="others"))
    raises(symmem.InvalidError, lambda: symmem.group("nobody"))


@check
def threads_can_allocate_concurrently() -> None:
    world = symmem.world()
    # The order of threads differs between ranks, so they use memory of a group of one rank.
    found: list[int] = []

    def worker() -> None:
        with symmem.use(world, disabled=True):
            for _ in range(50):
                found.append(symmem.alloc(4096).address)

    threads = [threading.Thread(target=worker) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(found) == 400
    symmem.check()


@check
def invalid_calls_raise_specific_errors() -> None:
    world, lib = symmem.world(), symmem.world().library
    block = symmem.alloc(4096)
    error = raises(
        symmem.OutOfRangeError,
        lambda: lib.call(
            "symmem_all_reduce", world.handle, 1 << 40, 1, 0, 0, block.address, block.address, 0
        ),
    )
    assert isinstance(error, IndexError)
    assert str(error)
    raises(symmem.MemoryUseError, lambda: lib.call("symmem_free", 4096))
    raises(
        symmem.InvalidError,
        lambda: lib.call("symmem_alloc", 0, 0, 0, ctypes.byref(ctypes.c_void_p())),
    )
    raises(symmem.SymmemError, lambda: lib.call("symmem_group_close", 987654321))
    raises(symmem.InvalidError, lambda: symmem.set_check("sometimes"))
    raises(symmem.InvalidError, lambda: symmem.alloc(-1))
    raises(symmem.InvalidError, lambda: symmem.alloc(2.5))
    raises(symmem.UnsupportedError, lambda: symmem.forget_stream(7))


@check
def invalid_addresses_are_rejected_and_the_group_continues() -> None:
    error = raises(symmem.OutOfMemoryError, lambda: symmem.reserve(1 << 42))
    assert isinstance(error, MemoryError)
    symmem.barrier()


@check
def a_closed_group_can_be_reopened() -> None:
    everyone = list(range(SIZE))
    first = symmem.group(everyone, name="reopened")
    assert symmem.group("reopened") is first
    first.close()
    first.close()
    error = raises(symmem.InvalidError, lambda: symmem.group("reopened"))
    assert "world" in str(error), error
    assert "reopened" not in str(error).partition(":")[2], error
    again = symmem.group(everyone, name="reopened")
    assert again is not first
    assert symmem.group("reopened") is again
    block = symmem.alloc(4 * COUNT, again)
    floats(block)[:] = memoryview(array.array("f", [1.0] * COUNT))
    all_reduce(block, again)
    assert floats(block)[0] == SIZE
    raises(symmem.ClosedError, lambda: all_reduce(block, first))
    again.close()


@check
def a_forked_child_gets_errors_and_the_parent_continues() -> None:
    world = symmem.world()
    block = symmem.alloc(4 * COUNT)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            raises(symmem.ForkedError, symmem.use)
            with symmem.use(world):
                pass
            outcome = b"a scope"
        except symmem.ForkedError:
            try:
                world.library.call("symmem_check", world.handle)
                outcome = b"a call"
            except symmem.ForkedError as e:
                outcome = b"ok" if "fork" in str(e) else str(e).encode()
        del block
        gc.collect()
        os.write(writing, outcome)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        assert pipe.read() == b"ok"
    os.waitpid(child, 0)
    floats(block)[:] = memoryview(array.array("f", [1.0] * COUNT))
    all_reduce(block, world)
    assert floats(block)[0] == SIZE


@check
def memory_is_reserved_and_trimmed() -> None:
    world = symmem.world()
    before = symmem.stats()["pools"][world.pool]["mapped"]
    symmem.reserve(256 << 20)
    grown = symmem.stats()["pools"][world.pool]["mapped"]
    assert grown > before
    assert not world.pending()
    symmem.trim()
    assert symmem.stats()["pools"][world.pool]["mapped"] < grown


@check
def the_check_level_can_be_changed() -> None:
    for level in ("off", "registration", "every"):
        symmem.set_check(level)
        assert symmem.stats()["check"] == level
    symmem.check()


@check
def live_blocks_prevent_an_unforced_close() -> None:
    block = symmem.alloc(4096)
    raises(symmem.InvalidError, symmem.finalize)
    assert symmem.is_initialized()
    symmem.finalize(force=True)
    assert not symmem.is_initialized()
    raises(symmem.ClosedError, symmem.world)
    raises(symmem.ClosedError, lambda: symmem.alloc(1))
    symmem.finalize()
    del block


if __name__ == "__main__":
    main()
