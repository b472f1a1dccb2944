"""Where PyTorch has put tensors inside of symmem's memory, as events of its history."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from symmem._cuda import CudaPools
    from symmem._group import Group

# Kinds of notes: the place of a block that PyTorch made, and how many bytes it has. Free blocks are
# noted, too, since they decide where the next tensor goes. A layout is a digest of all of them.
TENSOR_AT = 0x7053_0001
TENSOR_BYTES = 0x7053_0002
FREE_AT = 0x7053_0003
FREE_BYTES = 0x7053_0004
LAYOUT = 0x7053_0005

SEGMENT_SHIFT = 44
"""A place is one number: the segment's ordinal above so many bits of offset, 16 TiB."""


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
        library.call("symmem_note", group.pool, TENSOR_AT if used else FREE_AT, where)
        library.call("symmem_note", group.pool, TENSOR_BYTES if used else FREE_BYTES, size)


def note_layout(cuda: CudaPools, group: Group) -> None:
    """Note a digest of all blocks, so that a comparison names the scope after which they differ."""
    digest = hash(tuple(places(cuda, group)))
    group.library.call("symmem_note", group.pool, LAYOUT, digest)


EXPLAINED = {
    TENSOR_AT: "a tensor of PyTorch's begins at place",
    TENSOR_BYTES: "that tensor has these bytes:",
    FREE_AT: "free memory in PyTorch's cache begins at place",
    FREE_BYTES: "that free memory has these bytes:",
    LAYOUT: "PyTorch's tensors lie as digest",
}
"""What the kinds of notes mean, for messages."""
