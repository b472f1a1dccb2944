"""Checked signals for Triton kernels: waits end, and errors name the ranks that are missing.

A kernel gets the address of a `symmem.CheckedPad`. Each wait ends within the timeout of the group.
A wait whose signal is missing, or was sent with another `site`, fails: it returns False, and so do
all later waits of all ranks on the pad. The kernel should then return. `pad.check()` raises the
error on the host.

    import symmem.triton as checked

    @triton.jit
    def kernel(pad, ...):
        if checked.barrier(pad, channel=tl.program_id(0), site=1):
            ...

All threads of a block (a program of Triton) take part, so do not call these functions in code that
is warp-specialized. `channel` is below 1,024; blocks of a rank that run at the same time need
different channels or, for signals, peers. `site`, below 4,096, identifies a point of the program:
a signal and its wait have the same one.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
# mypy: disable-error-code="import-untyped"

from __future__ import annotations

import triton
import triton.language as tl

from symmem._device.ptx import instructions

_THREE = tl.constexpr("=r,l,r,r")
_FOUR = tl.constexpr("=r,l,r,r,r")


def _three(name: str) -> tl.constexpr:
    return tl.constexpr(instructions(name, "$0", "$1", "$2", "$3"))


def _four(name: str) -> tl.constexpr:
    return tl.constexpr(instructions(name, "$0", "$1", "$2", "$3", "$4"))


_BARRIER, _ARRIVE, _WAIT = _three("barrier"), _three("arrive"), _three("wait")
_SIGNAL, _WAIT_SIGNAL, _PEEK_SIGNAL = _four("signal"), _four("wait_signal"), _four("peek_signal")
_MARK, _UNCHANGED = _four("mark"), _four("unchanged")
_PEEK_UNCHANGED = _four("peek_unchanged")


@triton.jit
def _on_all(code: tl.constexpr, pad, channel, site: tl.constexpr):
    operands = [tl.cast(pad, tl.int64), tl.cast(channel, tl.int32), site]
    return tl.inline_asm_elementwise(code, _THREE, operands, tl.int32, is_pure=False, pack=1) != 0


@triton.jit
def _on_one(code: tl.constexpr, pad, peer, channel, site: tl.constexpr):
    operands = [tl.cast(pad, tl.int64), tl.cast(channel, tl.int32), site, tl.cast(peer, tl.int32)]
    return tl.inline_asm_elementwise(code, _FOUR, operands, tl.int32, is_pure=False, pack=1) != 0


@triton.jit
def barrier(pad, channel, site: tl.constexpr = 0):
    """Arrive on the channel, wait for all ranks, and return whether they arrived at this site."""
    return _on_all(_BARRIER, pad, channel, site)


@triton.jit
def arrive(pad, channel, site: tl.constexpr = 0):
    """Signal all ranks that this block has arrived. They see its earlier writes after `wait`.

    Call `wait` before the next `arrive` on the channel.
    """
    _on_all(_ARRIVE, pad, channel, site)


@triton.jit
def wait(pad, channel, site: tl.constexpr = 0):
    """Wait for the arrivals of all ranks on the channel, and return whether all are there."""
    return _on_all(_WAIT, pad, channel, site)


@triton.jit
def signal(pad, peer, channel, site: tl.constexpr = 0):
    """Signal a rank. It sees the earlier writes of this block after its `wait_signal`.

    The rank must have taken the previous signal on the channel; if not, its wait fails.
    """
    _on_one(_SIGNAL, pad, peer, channel, site)


@triton.jit
def wait_signal(pad, peer, channel, site: tl.constexpr = 0, take: tl.constexpr = True):
    """Wait for the next signal from a rank on the channel, take it, and return whether it came.

    Several blocks may wait for the same signal with `take=False`, and then call `unchanged` with
    `take=False`. Afterwards, one has to take it.
    """
    if take:
        return _on_one(_WAIT_SIGNAL, pad, peer, channel, site)
    else:
        return _on_one(_PEEK_SIGNAL, pad, peer, channel, site)


@triton.jit
def put(pad, peer, channel, pointers, values, mask=None, site: tl.constexpr = 0):
    """Store values in a rank's memory and signal the rank, which reads them after `wait_signal`.

    If the rank has not taken the previous signal, its wait fails. If it is still reading the
    previous values, its `unchanged` fails.
    """
    ok = _on_one(_MARK, pad, peer, channel, site)
    if ok:
        tl.store(pointers, values, mask=mask)
        _on_one(_SIGNAL, pad, peer, channel, site)
    return ok


@triton.jit
def unchanged(pad, peer, channel, site: tl.constexpr = 0, take: tl.constexpr = True):
    """After reading the values of a rank's `put`, return whether the next `put` had not begun.

    `take` is that of the block's `wait_signal`. If it is False, no block may have taken the signal.
    """
    if take:
        return _on_one(_UNCHANGED, pad, peer, channel, site)
    else:
        return _on_one(_PEEK_UNCHANGED, pad, peer, channel, site)
