"""Where PyTorch has put tensors inside of symmem's memory, as events of its history."""

from __future__ import annotations

from typing import TYPE_CHECKING

from symmem._constants import SEGMENT_SHIFT, Note

if TYPE_CHECKING:
    from symmem._cuda import CudaPools
    from symmem._group import Group


def places(cuda: CudaPools, group: Group) -> list[tuple[int, int, bool]]:
    """List all blocks of the group's memory: place, bytes, in use; in the order of places."""
    library = group.library
    known: dict[int, int] = {}

    def place(segment: int) -> int:
        if segment not in known:
            at = library.json("symmem_locate", segment)
            known[segment] = (int(at["segment"]) << SEGMENT_SHIFT) + int(at["offset"])
        return known[segment]

    return sorted(
        (place(segment) + address - segment, size, used)
        for address, size, segment, used in cuda.blocks(group.pool)
    )


def note_blocks(cuda: CudaPools, group: Group) -> None:
    """Note every block, so that a comparison names the first that differs."""
    library = group.library
    for where, size, used in places(cuda, group):
        library.call("symmem_note", group.pool, Note.TENSOR_AT if used else Note.FREE_AT, where)
        library.call(
            "symmem_note", group.pool, Note.TENSOR_BYTES if used else Note.FREE_BYTES, size
        )


def note_layout(cuda: CudaPools, group: Group) -> None:
    """Note a digest of all blocks, so that a comparison names the scope after which they differ."""
    digest = hash(tuple(places(cuda, group))) & (1 << 63) - 1  # notes are not negative
    group.library.call("symmem_note", group.pool, Note.LAYOUT, digest)
