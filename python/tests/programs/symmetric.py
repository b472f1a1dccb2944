"""Tests PyTorch's symmetric memory with symmem's allocator, on CPUs."""

from __future__ import annotations

import ctypes
import time
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
from harness import RANK, SIZE, check, main, raises

import symmem

WORLD = range(SIZE)


@check
def symmem_is_a_symmetric_memory_backend() -> None:
    dist.init_process_group("cpu:symmem", timeout=timedelta(seconds=60))
    symmem.use_symm_mem()
    assert symm_mem.get_backend(torch.device("cpu")) == "SYMMEM"


def rendezvous(count: int, group: Any = None) -> tuple[torch.Tensor, Any]:
    """Return a symmetric tensor and its handle."""
    tensor = symm_mem.empty(count, device="cpu")
    return tensor, symm_mem.rendezvous(tensor, group or dist.group.WORLD)


@check
def ranks_can_access_buffers_of_peers() -> None:
    tensor, handle = rendezvous(1000)
    assert (handle.rank, handle.world_size) == (RANK, SIZE)
    assert symmem.is_symmetric(tensor)
    assert handle.buffer_ptrs[RANK] == tensor.data_ptr()
    assert handle.multicast_ptr == 0
    tensor.fill_(RANK)
    handle.barrier()
    for peer in WORLD:
        assert handle.get_buffer(peer, (1000,), torch.float32).eq(peer).all()
    handle.barrier()
    following = (RANK + 1) % SIZE
    handle.get_remote_tensor(following, (1000,), torch.float32).fill_(RANK + 100)
    handle.barrier()
    assert tensor.eq((RANK - 1) % SIZE + 100).all()
    symmem.check()


@check
def signals_have_channels() -> None:
    _, handle = rendezvous(10)
    following, previous = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    for channel in range(3):
        handle.put_signal(following, channel)
    for channel in reversed(range(3)):
        handle.wait_signal(previous, channel)
    assert handle.get_signal_pad(RANK).eq(0).all()
    handle.barrier()


@check
def a_missing_signal_is_an_error_that_names_the_rank() -> None:
    _, handle = rendezvous(10)
    begin = time.monotonic()
    peer = (RANK + 1) % SIZE
    # An exception in a variable would keep the handle alive until the garbage collection.
    said = str(raises(dist.DistBackendError, lambda: handle.wait_signal(peer, 0, timeout_ms=200)))
    assert f"rank {peer} " in said, said
    assert time.monotonic() - begin < 20
    handle.barrier()


@check
def each_group_has_its_own_pads() -> None:
    twin = dist.new_group(list(WORLD), backend="symmem")
    tensor = symm_mem.empty(64, device="cpu")
    one = symm_mem.rendezvous(tensor, dist.group.WORLD)
    two = symm_mem.rendezvous(tensor, twin)
    assert one.signal_pad_ptrs[RANK] != two.signal_pad_ptrs[RANK]
    assert one.buffer_ptrs[RANK] == two.buffer_ptrs[RANK]
    one.put_signal((RANK + 1) % SIZE, 0)
    raises(dist.DistBackendError, lambda: two.wait_signal((RANK - 1) % SIZE, 0, timeout_ms=100))
    one.wait_signal((RANK - 1) % SIZE, 0)
    one.barrier()


@check
def handles_of_symmem_tensors_have_the_same_members() -> None:
    tensor = symmem.empty(100, dtype=torch.float64)
    handle: symmem.Handle = symmem.handle(tensor)
    theirs = rendezvous(100)[1]
    members = [name for name in dir(handle) if not name.startswith("_")]
    own = {"explain"}
    assert set(members) <= {n for n in dir(theirs) if not n.startswith("_")} | own, members
    tensor.fill_(RANK)
    handle.barrier()
    peer = (RANK + 1) % SIZE
    assert handle.get_buffer(peer, (50,), torch.float64, 50).eq(peer).all()
    handle.put_signal(peer, 1)
    assert handle.get_signal_pad(peer, (SIZE,), torch.int32, SIZE)[RANK] <= 1
    handle.wait_signal((RANK - 1) % SIZE, 1)
    words = torch.frombuffer(
        (ctypes.c_uint64 * SIZE).from_address(handle.buffer_ptrs_dev), dtype=torch.int64
    )
    assert words.tolist() == handle.buffer_ptrs
    assert handle.buffer_ptrs[RANK] == tensor.data_ptr()
    assert (handle.multicast_ptr, handle.buffer_size) == (0, 800)
    on_host = torch.zeros(4, dtype=torch.int32)
    raises(NotImplementedError, lambda: handle.stream_write_value32(on_host, 1, 1))
    handle.barrier()
    raises(symmem.InvalidError, lambda: symmem.handle(torch.empty(3, 3).t()))


@check
def handles_keep_the_size_of_their_signal_pads() -> None:
    _, theirs = rendezvous(10)
    handle = symmem.handle(symmem.empty(100))
    size = symm_mem.get_signal_pad_size()
    channel = size // 4 // SIZE - 1
    following, previous = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    try:
        for later_size in (4 * SIZE, 16 * size):
            symm_mem.set_signal_pad_size(later_size)
            for each in (theirs, handle):
                each.put_signal(following, channel)
                each.wait_signal(previous, channel)
                raises(ValueError, partial(each.put_signal, following, channel + 1))
            assert handle.signal_pad_size == size
            pad = handle.get_signal_pad(following)
            assert pad.nbytes == size
            assert pad.data_ptr() == handle.signal_pad_ptrs[following]
            last = handle.get_signal_pad(RANK, (2,), torch.uint8, size - 2)
            assert last.data_ptr() == handle.signal_pad_ptrs[RANK] + size - 2
            for shape, offset in (((2,), size - 1), ((size + 1,), 0), ((1,), -1)):
                view = partial(handle.get_signal_pad, RANK, shape, torch.uint8, offset)
                raises(ValueError, view)
            raises(ValueError, partial(handle.get_signal_pad, SIZE))
    finally:
        symm_mem.set_signal_pad_size(size)
    handle.barrier()


@check
def a_deleted_handle_keeps_what_its_kernels_use() -> None:
    handle: Any = symmem.handle(symmem.empty(100))
    retired: list[bool] = []
    pad = handle.signal_pad_ptrs[RANK]
    library = symmem.world().library
    handle._queued = SimpleNamespace(retire=lambda: retired.append(True))
    del handle
    assert retired == [True]
    raises(symmem.MemoryUseError, lambda: library.call("symmem_free", pad))


@check
def buffers_first_used_in_inference_mode_can_be_trained_with() -> None:
    handle = symmem.handle(symmem.full((8,), 3.0))
    with torch.inference_mode():
        handle.get_buffer(RANK, (8,), torch.float32)
    weights = torch.ones(8, requires_grad=True)
    (weights * handle.get_buffer(RANK, (8,), torch.float32)).sum().backward()
    assert weights.grad is not None
    assert weights.grad.eq(3).all()


@check
def signals_that_no_rank_takes_are_explained() -> None:
    group = symmem.group(list(WORLD), name="explained", timeout=0.5)
    tensor = symmem.empty(100)
    handle = symmem.handle(tensor, group)
    assert handle.explain() == ""
    handle.barrier()
    if RANK == 0:  # as symm_mem_sync of kernels in three blocks
        for peer in range(1, SIZE):
            for block in (0, 1, 5):
                handle.get_signal_pad(peer, (1,), torch.int32, block * SIZE).fill_(1)
    symmem.barrier()
    text = "rank 1 has not taken the signals of rank 0 in blocks or channels 0-1, 5"
    assert text in handle.explain(), handle.explain()
    assert "rank 0 has" not in handle.explain()
    symmem.barrier()
    if RANK == 0:
        said = str(raises(symmem.TimeoutError, lambda: symmem.barrier(group)))
        assert text in said, said
        handle.get_signal_pad(1, (1,), torch.int32, 3).fill_(17)
        assert "nonzero words of rank 1's signal pad: 0: 0x1, " in handle.explain()
        assert "3: 0x11" in handle.explain()
    symmem.barrier()
    if RANK != 0:
        raises(symmem.TimeoutError, lambda: symmem.barrier(group))
    symmem.check()  # the pools are in order again


@check
def handles_of_closed_groups_raise_errors() -> None:
    group = symmem.group(list(WORLD), name="closed")
    handle = symmem.handle(symmem.empty(100), group)
    handle.barrier()
    symmem.barrier()
    group.close()
    for use in (
        handle.barrier,
        handle.explain,
        lambda: handle.put_signal(RANK),
        lambda: handle.wait_signal(RANK),
        lambda: handle.get_signal_pad(RANK, (1,), torch.int32),
        lambda: handle.get_buffer(RANK, (1,), torch.float32),
    ):
        assert "closed" in str(raises(symmem.ClosedError, use))


@check
def memory_from_other_allocators_is_rejected() -> None:
    error = raises(ValueError, lambda: symm_mem.rendezvous(torch.empty(8), dist.group.WORLD))
    assert "symm_mem.empty" in str(error), error


@check
def memory_can_be_freed_and_reallocated() -> None:
    for count in (10, 1000, 100_000):
        for _ in range(5):
            tensor, handle = rendezvous(count)
            handle.barrier()
            del tensor, handle
    symmem.check()


@check
def a_new_world_does_not_reuse_old_handles() -> None:
    tensor, handle = rendezvous(10)
    name = dist.group.WORLD.group_name
    handle.barrier()
    dist.destroy_process_group()
    dist.init_process_group("cpu:symmem", timeout=timedelta(seconds=60))
    assert dist.group.WORLD.group_name == name
    raises(dist.DistError, partial(symm_mem.rendezvous, tensor, dist.group.WORLD))
    raises(dist.DistError, partial(handle.put_signal, RANK, 0))
    del tensor, handle
    rendezvous(10)[1].barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
