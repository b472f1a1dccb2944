"""Stopping all ranks after the same step, when one of them is asked to stop."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import TYPE_CHECKING

from symmem._api.values import combined
from symmem._c.constants import Value

if TYPE_CHECKING:
    from symmem._api.terms import GroupLike

_requested = False
_watched = False


def should_stop(group: GroupLike = None) -> bool:
    """Report whether any rank has been asked to stop, with the same answer on all ranks.

    It is collective: call it once in each step of a loop, on all ranks.

        for batch in batches:
            train(batch)
            if symmem.should_stop():
                save()
                break

    A stop is requested with `symmem.request_stop`, or with SIGTERM, which schedulers send before
    they take a machine away. The call costs what `symmem.agree` does. Once true, it stays true in
    this process.

    Unless the program handles SIGTERM, the first call on the main thread makes it such a request.
    Further signals change nothing, since both a scheduler and a launcher may send one to the same
    process; SIGKILL ends it. A handler of the program can call `symmem.request_stop`.

    Args:
        group: as `symmem.group` takes it; the world unless given.
    """
    _watch()
    return combined(Value.ANY, _requested, "should stop", group) != 0


def request_stop() -> None:
    """Ask for a stop: the next `symmem.should_stop` is true on all ranks of its group.

    It waits for nothing, and may be called on any thread and in handlers of signals.
    """
    global _requested
    _requested = True


def _watch() -> None:
    """Take SIGTERM as a request, where nothing else does."""
    global _watched
    if _watched or threading.current_thread() is not threading.main_thread():
        return
    _watched = True
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _on_signal)


def _on_signal(_number: int, _frame: FrameType | None) -> None:
    request_stop()


class _Masks(threading.local):
    """The signals that this thread had blocked when it began to fork."""

    before: set[int | signal.Signals] | None = None


_masks = _Masks()


def _before_fork() -> None:
    """Hold SIGTERM back from a child while it has the handler, which would lose it."""
    if signal.getsignal(signal.SIGTERM) is _on_signal:
        _masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])


def _after_fork() -> None:
    if _masks.before is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, _masks.before)
        _masks.before = None


def _in_child() -> None:
    """Let SIGTERM end a child of fork, which has no steps."""
    global _requested, _watched
    _requested = _watched = False
    if signal.getsignal(signal.SIGTERM) is _on_signal:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _after_fork()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)
