"""Records where PyTorch places tensors in symmem's memory, as events in the pool's history."""

from __future__ import annotations

from symmem._c.constants import SEGMENT_SHIFT, Note
from symmem._c.library import Library
from symmem._torch.cuda import CudaPools


def places(cuda: CudaPools, library: Library, pool: int) -> list[tuple[int, int, bool]]:
    """Return the place, size and use of all blocks in a pool's memory, sorted by place."""
    known: dict[int, int] = {}

    def place(segment: int) -> int:
        if segment not in known:
            at = library.json("symmem_locate", segment)
            known[segment] = (int(at["segment"]) << SEGMENT_SHIFT) + int(at["offset"])
        return known[segment]

    return sorted(
        (place(segment) + address - segment, size, used)
        for address, size, segment, used in cuda.blocks(pool)
    )


def note_blocks(cuda: CudaPools, library: Library, pool: int) -> None:
    """Record every block, so that a comparison of ranks names the first different one."""
    for where, size, used in places(cuda, library, pool):
        library.call("symmem_note", pool, Note.TENSOR_AT if used else Note.FREE_AT, where)
        library.call("symmem_note", pool, Note.TENSOR_BYTES if used else Note.FREE_BYTES, size)


def note_layout(cuda: CudaPools, library: Library, pool: int) -> None:
    """Record a digest of all blocks, so that a comparison names the scope that made them differ."""
    digest = hash(tuple(places(cuda, library, pool))) & (1 << 63) - 1  # Notes are never negative.
    library.call("symmem_note", pool, Note.LAYOUT, digest)
