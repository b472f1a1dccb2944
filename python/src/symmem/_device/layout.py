"""The layout of a checked pad. All offsets are in bytes, and the same on every rank."""

from __future__ import annotations

from enum import IntEnum

RANKS = 32
"""The maximum number of ranks: one warp waits for all of them."""

CHANNELS = 1024
SITES = 4096

# Words of 32 bits: the first failure of any rank, a number that distinguishes the pads of a group,
# the rank, and the number of ranks. One load reads all of them.
FAILED, NUMBER, RANK, SIZE = 0, 4, 8, 12
TIMEOUT = 16
"""The timeout of each wait, in nanoseconds (64 bits)."""
STOP = 32
"""The address of the word by which the host stops kernels of a failed group, or 0 (64 bits)."""
REPORTED = 24
"""Whether this rank has written its report (32 bits)."""
PEERS = 256
"""The addresses of all ranks' pads (64 bits each)."""
REPORTS = 512
"""A report of each rank, of REPORT bytes. A failing rank writes its report to all pads."""
REPORT = 64
"""Its size. The fields are the `Kind` and the peer (32 bits each), the expected and the found word
(64 bits each), the channel, the site and the `Row` (32 bits each)."""
ARRIVALS = 4096
"""For each channel, how often this rank has arrived, and how often it has waited (32 bits each)."""
SIGNALS = ARRIVALS + 8 * CHANNELS
"""For each channel and peer, the number of signals sent, and of those taken (32 bits each)."""
SLOTS = SIGNALS + 8 * RANKS * CHANNELS
"""For each channel, three rows of slots: in each row, every rank writes one word of 64 bits.

Arrivals alternate between the first two rows, because a rank can be one arrival ahead of its peers.
Signals use the third. The high half of a word is the epoch, which counts the arrivals or signals of
the rank on the channel. The low half is the tag: the number of the pad (8 bits), the channel and
the call site (12 bits each).
"""
ROW = 8 * RANKS


class Kind(IntEnum):
    """Why a wait has failed."""

    TIMEOUT = 1
    DIFFERENT = 2  # it found a later signal, or one of another site
    PEER = 3  # another rank failed first
    ARGUMENT = 4
    OVERWRITTEN = 5  # `unchanged` failed
    STOPPED = 6  # the host stopped the group's kernels


class Row(IntEnum):
    """The operation of a wait, as its first row of slots: arrivals have two rows."""

    ARRIVE = 0
    SIGNAL = 2
