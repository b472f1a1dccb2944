"""Test that symmem does not touch aborted communicators and destroyed streams.

The argument is what follows the abort: detach, trim, scope, finalize or force. One rank is enough.
Each case needs a new process, because accessing a destroyed object ends the process.
"""

from __future__ import annotations

import ctypes
import sys

import common
import torch
import torch.distributed as dist
from common import DEVICE, MIB, say

import symmem


def destroyed_stream() -> None:
    """Queue work on a stream of another library, which then destroys the stream."""
    cuda = ctypes.CDLL("libcuda.so.1")
    handle = ctypes.c_void_p()
    assert cuda.cuStreamCreate(ctypes.byref(handle), 1) == 0
    assert handle.value is not None
    x = torch.ones(1024, device=DEVICE)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.ExternalStream(handle.value)):
        symmem.all_reduce(x)
    torch.cuda.synchronize()
    assert cuda.cuStreamDestroy_v2(handle) == 0
    for count in (512, 256, 128):  # each is a new plan
        symmem.all_reduce(x[:count])


def main(what: str) -> None:
    """Attach, abort, and make one case's calls."""
    world = common.start()
    symmem.attach()
    with symmem.use(world):
        x = torch.ones(4 * MIB, device=DEVICE)
    dist.all_reduce(x)
    torch.cuda.synchronize()
    destroyed_stream()
    backend = dist.distributed_c10d._get_default_group()._get_backend(DEVICE)
    backend.abort()
    if what == "detach":
        found = symmem.detach()
        say("detached:", found)
    elif what == "trim":
        del x
        symmem.trim()
    elif what == "finalize":
        del x
    elif what == "scope":
        with symmem.use(world):
            y = torch.ones(64 * MIB, device=DEVICE)
        symmem.all_reduce(y)
        torch.cuda.synchronize()
    symmem.finalize(force=what in ("force", "detach", "scope"))
    ok = bool(torch.ones(4, device=DEVICE).sum() == 4)
    say("PASS" if ok else "FAIL", f"after an abort by torch: {what}, then finalize")
    sys.exit(not ok)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "finalize")
