"""Where PyTorch has put tensors inside of symmem's memory, as events of its history."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from symmem._cuda import CudaPools
    from symmem._group import Group

# Kinds of notes: the place of a block that PyTorch made, and how many bytes it has. Free blocks are
# noted, too, since they decide where the next tensor goes.
TENSOR_AT = 0x7053_0001
TENSOR_BYTES = 0x7053_0002
FREE_AT = 0x7053_0003
FREE_BYTES = 0x7053_0004

SEGMENT_SHIFT = 44
"""A place is one number: the segment's ordinal above so many bits of offset, 16 TiB."""


def note_blocks(cuda: CudaPools, group: Group) -> None:
    """Note all blocks of the group's memory, in the order of their places."""
    library = group.library
    places: dict[int, int] = {}

    def place(segment: int) -> int:
        if segment not in places:
            at = library.json("symmem_locate", segment)
            places[segment] = (int(at["segment"]) << SEGMENT_SHIFT) + int(at["offset"])
        return places[segment]

    found = [
        (place(segment) + address - segment, size, used)
        for address, size, segment, used in cuda.blocks(group.pool)
    ]
    for where, size, used in sorted(found):
        library.call("symmem_note", group.pool, TENSOR_AT if used else FREE_AT, where)
        library.call("symmem_note", group.pool, TENSOR_BYTES if used else FREE_BYTES, size)
