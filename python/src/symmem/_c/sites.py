"""Finds the lines of the program that call symmem, for errors and warnings."""

from __future__ import annotations

import os
import sys
import warnings
from types import FrameType

MAX_FRAMES = 8
"""The maximum number of stack frames recorded for a call."""

_SKIPPED = ("symmem", "torch")
"""The packages whose frames do not belong to the program. Inductor generates code in torch."""

_GENERATED = "<eval_with_key>"
"""The prefix of the file names that torch.fx gives to generated code."""


def program(start: FrameType, most: int = 1) -> list[FrameType]:
    """Return the program's frames that led to a frame, innermost first.

    Frames of symmem and PyTorch are excluded. If there are no others, as on autograd's threads, the
    result is the innermost frame outside symmem.
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
    """Format frames on one line: "train.py:80 > layers.py:12 > /src/comm.py:5".

    The innermost frame comes last and is the only one with its full path, because the library
    truncates long texts at the front.
    """
    inner, *outer = frames
    callers = [f"{os.path.basename(f.f_code.co_filename)}:{f.f_lineno}" for f in reversed(outer)]
    return " > ".join([*callers, f"{inner.f_code.co_filename}:{inner.f_lineno}"])


def warn(warning: Warning, *, again: bool = False) -> None:
    """Issue a warning for the line of the program that called symmem.

    Args:
        warning: the warning.
        again: whether the default filter shows the warning again if it has already been issued for
            the same line.
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
    """Return the number of stack frames to record for each call.

    It is the argument `callsites` of `symmem.init` or the number in SYMMEM_CALLSITES. The library
    decides whether call sites are recorded at all.
    """
    if given is None or given is True:
        words = os.environ.get("SYMMEM_CALLSITES", "")
        given = int(words) if words.isdigit() else 1
    return max(1, min(int(given), MAX_FRAMES))
