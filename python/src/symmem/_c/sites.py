"""The lines of the program that call symmem, for errors and warnings."""

from __future__ import annotations

import os
import sys
import warnings
from types import FrameType

MOST = 8
"""The most lines that are noted of one call."""

_SKIPPED = ("symmem", "torch")
"""The packages whose frames are not the program's. The code that inductor generates runs in modules
below torch."""

_GENERATED = "<eval_with_key>"
"""The prefix of the file names that torch.fx gives to generated code."""


def program(start: FrameType, most: int = 1) -> list[FrameType]:
    """List the frames of the program that lead to a frame, the innermost first.

    Frames of symmem and of PyTorch are left out. Where there are no others, as on a thread of
    autograd, the innermost frame outside of symmem stands for the program.
    """
    found: list[FrameType] = []
    outside: FrameType | None = None
    frame: FrameType | None = start
    while frame is not None and len(found) < most:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package not in _SKIPPED and not frame.f_code.co_filename.startswith(_GENERATED):
            found.append(frame)
        elif package != "symmem" and outside is None:
            outside = frame
        frame = frame.f_back
    return found or [outside or start]


def text(frames: list[FrameType]) -> str:
    """Write frames in one line, the innermost last: "train.py:80 > layers.py:12 > /src/comm.py:5".

    Only the innermost has its whole path, and the library keeps the end of what is too long.
    """
    inner, *outer = frames
    callers = [f"{os.path.basename(f.f_code.co_filename)}:{f.f_lineno}" for f in reversed(outer)]
    return " > ".join([*callers, f"{inner.f_code.co_filename}:{inner.f_lineno}"])


def warn(warning: Warning, *, again: bool = False) -> None:
    """Warn at the line of the program that called symmem.

    Args:
        warning: the warning.
        again: whether the default filter shows it even if the line has had the same warning.
    """
    frame = program(sys._getframe(1))[0]
    seen = None if again else frame.f_globals.setdefault("__warningregistry__", {})
    warnings.warn_explicit(
        warning,
        type(warning),
        frame.f_code.co_filename,
        frame.f_lineno,
        module=frame.f_globals.get("__name__"),
        registry=seen,
    )


def wanted(given: int | None) -> int:
    """Return how many lines of each call to note, from `symmem.init` or the environment.

    SYMMEM_CALLSITES is their number. The library decides whether any are noted.
    """
    if given is None or given is True:
        words = os.environ.get("SYMMEM_CALLSITES", "")
        given = int(words) if words.isdigit() else 1
    return max(1, min(int(given), MOST))
