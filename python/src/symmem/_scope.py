"""`use`: a section of code whose tensors are symmetric."""

from __future__ import annotations

import os
import sys
import threading
import warnings
from types import TracebackType
from typing import TYPE_CHECKING

from symmem import errors

if TYPE_CHECKING:
    from symmem._group import Group
    from symmem._routing import Lane
    from symmem._runtime import Runtime

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep


class Current(threading.local):
    """The groups of this thread's open scopes, innermost last; None for a disabled one."""

    def __init__(self) -> None:
        self.groups: list[Group | None] = []


class Scope:
    """What `symmem.use` returns. It can be entered again after it was left, by the same thread."""

    __slots__ = ("_all_threads", "_group", "_lane", "_site", "_words")

    def __init__(self, group: Group, all_threads: bool):
        self._group = group
        self._all_threads = all_threads
        self._words = group.library.words
        self._lane: Lane | None = None
        self._site: int | None = None

    def __enter__(self) -> Group:
        group = self._group
        if group.runtime.callsites:
            self._site = set_site(group.runtime)
        router = group.router
        if router is not None:
            self._lane = router.enter(self._all_threads)
        else:
            group.runtime.require()
            group.runtime.current.groups.append(group)
        return group

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        group = self._group
        router = group.router
        if router is None:
            group.runtime.current.groups.pop()
        elif self._lane is not None:
            router.leave(self._lane)
            self._lane = None
        try:
            # The other ranks may not have come as far as an exception has let this one.
            if kind is None and self._words[0] != group.seen:  # Word.PENDING
                end(group)
        finally:
            if self._site is not None:
                group.library.raw.symmem_set_site(self._site)
                self._site = None


class Disabled:
    """A scope whose tensors are ordinary, also inside of one whose tensors are symmetric."""

    __slots__ = ("_group", "_paused")

    def __init__(self, group: Group):
        self._group = group
        self._paused = False

    def __enter__(self) -> Group:
        router = self._group.router
        if router is not None:
            self._paused = router.pause()
        else:
            self._group.runtime.current.groups.append(None)
        return self._group

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        router = self._group.router
        if router is None:
            self._group.runtime.current.groups.pop()
        elif self._paused:
            self._paused = False
            router.unpause()


class Nothing:
    """A scope while PyTorch compiles: what compiled code allocates is the compiler's affair."""

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None


def end(group: Group) -> None:
    """End a scope where something is new: register it, or say why that has to wait."""
    runtime = group.runtime
    runtime.require()
    runtime.before_registration(group)
    try:
        group.end_scope(runtime.stream())
    except errors.CapturingError:
        _warn_of_growth(group)


def _warn_of_growth(group: Group) -> None:
    """Say once for each number of pending segments that a capture has met memory that is new."""
    word = group.library.words[0]
    if group.warned == word:
        return
    group.warned = word
    warnings.warn(
        f"memory of {group!r} had to grow while a CUDA graph was captured. It cannot be registered "
        "now, so the collectives captured over it take the plain path, on every rank alike. "
        "Reserve more before the capture: symmem.reserve(bytes, group)",
        errors.GrowthInCaptureWarning,
        stacklevel=4,
    )


def set_site(runtime: Runtime) -> int:
    """Make the caller's line the site of what this thread does, and return the one before."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    site = runtime.site(f"{frame.f_code.co_filename}:{frame.f_lineno}")
    return int(runtime.library.raw.symmem_set_site(site))
