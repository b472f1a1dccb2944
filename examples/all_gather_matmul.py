"""Multiplies a matrix that is sharded over the ranks, while its shards are still being sent.

    torchrun --nproc-per-node 2 examples/all_gather_matmul.py

The first blocks of the kernel send this rank's shard to its peers, in chunks. Every other block
computes a tile, as soon as the chunk with its rows has arrived. Every wait is checked: if a rank is
missing, all ranks get an error that names it.
"""

import os

import torch
import triton
import triton.language as tl

import symmem
import symmem.triton as checked

M, N, K, CHUNKS = 2048, 4096, 2048, 16
TILE_M, TILE_N, TILE_K = 128, 128, 64


@triton.jit
def all_gather_matmul(  # type: ignore[no-untyped-def]
    pad, peers, a, b, c, n: tl.constexpr, k: tl.constexpr, rows: tl.constexpr,
    chunks: tl.constexpr, rank: tl.constexpr, size: tl.constexpr,
    tile_m: tl.constexpr, tile_n: tl.constexpr, tile_k: tl.constexpr,
):  # fmt: skip
    """Sends this rank's shard of a to all ranks, and multiplies all shards by b."""
    block = tl.program_id(0)
    senders: tl.constexpr = chunks * (size - 1)
    part: tl.constexpr = rows * k // chunks  # elements of a chunk
    if block < senders:
        chunk, peer = block % chunks, (rank + 1 + block // chunks) % size
        begin = rank * rows * k + chunk * part
        to = tl.load(peers.to(tl.pointer_type(tl.uint64)) + peer).to(tl.pointer_type(tl.bfloat16))
        for step in range(0, part, 4096):
            at = begin + step + tl.arange(0, 4096)
            tl.store(to + at, tl.load(a + at))
        checked.signal(pad, peer, chunk, site=0)
    else:
        tile = block - senders
        row, column = tile // (n // tile_n) * tile_m, tile % (n // tile_n) * tile_n
        row = (rank * rows + row) % (size * rows)  # this rank's shard first
        source, chunk = row // rows, row % rows * k // part
        ready = source == rank
        if not ready:
            ready = checked.wait_signal(pad, source, chunk, site=0, take=False)
        if ready:
            i, j, h = (
                row + tl.arange(0, tile_m),
                column + tl.arange(0, tile_n),
                tl.arange(0, tile_k),
            )
            total = tl.zeros((tile_m, tile_n), tl.float32)
            for step in range(0, k, tile_k):
                x = tl.load(a + i[:, None] * k + (step + h)[None, :])
                y = tl.load(b + (step + h)[:, None] * n + j[None, :])
                total = tl.dot(x, y, total)
            tl.store(c + i[:, None] * n + j[None, :], total.to(tl.bfloat16))


@triton.jit
def finish(pad, chunks: tl.constexpr, rank: tl.constexpr, size: tl.constexpr):  # type: ignore[no-untyped-def]
    """Takes all signals, and waits until all ranks are done with a, so that it can be reused."""
    chunk = tl.program_id(0)
    for step in range(1, size):
        checked.wait_signal(pad, (rank + step) % size, chunk, site=0)
    checked.barrier(pad, chunk, site=1)


def multiply(
    pad: symmem.CheckedPad, handle: symmem.Handle, a: torch.Tensor, b: torch.Tensor
) -> torch.Tensor:
    """Return the product of all shards and b. `a` has this rank's shard at its place."""
    rank, size, rows = handle.rank, handle.world_size, len(a) // handle.world_size
    (_, k), (_, n) = a.shape, b.shape
    c = torch.empty(len(a), n, device=a.device, dtype=a.dtype)
    tiles = (len(a) // TILE_M) * (n // TILE_N)
    all_gather_matmul[(CHUNKS * (size - 1) + tiles,)](
        *(pad.address, handle.buffer_ptrs_dev, a, b, c, n, k, rows, CHUNKS, rank, size),
        *(TILE_M, TILE_N, TILE_K),
        num_warps=8,
        num_stages=3,
    )
    finish[(CHUNKS,)](pad.address, CHUNKS, rank, size)
    return c


def main() -> None:
    """Compare `multiply` with PyTorch's own operations."""
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    torch.distributed.init_process_group("nccl", device_id=device)
    group = symmem.init()
    with symmem.use():
        a = torch.empty(group.size * M, K, device=device, dtype=torch.bfloat16)
    handle, pad = symmem.handle(a), symmem.checked_pad(sites=("chunk", "all chunks"))
    mine = torch.randn(M, K, device=device, dtype=torch.bfloat16)
    b = torch.randn(K, N, device=device, dtype=torch.bfloat16)
    torch.distributed.broadcast(b, 0)
    a[group.rank * M :][:M] = mine
    c = multiply(pad, handle, a, b)
    pad.check()
    whole = torch.empty_like(a)
    torch.distributed.all_gather_into_tensor(whole, mine)
    torch.testing.assert_close(c, whole @ b, atol=1.0, rtol=0.02)
    if group.rank == 0:
        print("the products are equal")
    pad.close()
    symmem.finalize(force=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
