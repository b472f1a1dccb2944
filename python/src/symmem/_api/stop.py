"""Stops all ranks after the same step if one of them is asked to stop."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING

from symmem._api.values import combined
from symmem._c.constants import Value

if TYPE_CHECKING:
    from symmem._api.terms import GroupLike


class _Masks(threading.local):
    """The signals that a thread had blocked when it began to fork."""

    before: set[int | signal.Signals] | None = None


class _Stop:
    """Records whether this process was asked to stop, by a call or by SIGTERM.

    A forked child runs no steps, so its state is reset and SIGTERM terminates it.
    """

    def __init__(self) -> None:
        self.requested = False
        self._watching = False
        self._masks = _Masks()

    def request(self, *_: object) -> None:
        """Record a request. This method also handles SIGTERM."""
        self.requested = True

    def watch(self) -> None:
        """Handle SIGTERM from now on if this is the main thread and there is no other handler."""
        if self._watching or threading.current_thread() is not threading.main_thread():
            return
        self._watching = True
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self.request)

    def before_fork(self) -> None:
        """Block SIGTERM, because a child that still has the parent's handler would lose it."""
        if self._handles():
            self._masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])

    def after_fork(self) -> None:
        """Undo `before_fork`."""
        if self._masks.before is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._masks.before)
            self._masks.before = None

    def in_child(self) -> None:
        """Reset the state in a forked child."""
        self.requested = self._watching = False
        if self._handles():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self.after_fork()

    def _handles(self) -> bool:
        return signal.getsignal(signal.SIGTERM) == self.request


_stop = _Stop()

os.register_at_fork(
    before=_stop.before_fork,
    after_in_parent=_stop.after_fork,
    after_in_child=_stop.in_child,
)


def should_stop(group: GroupLike = None) -> bool:
    """Return whether any rank has been asked to stop. All ranks get the same answer.

    The call is collective: make it once in each iteration of a loop, on all ranks.

        for batch in batches:
            train(batch)
            if symmem.should_stop():
                save()
                break

    A stop is requested by `symmem.request_stop` or by SIGTERM, which schedulers send before they
    reclaim a machine. The call is as fast as `symmem.agree`. After it has returned True once, it
    returns True for the rest of the process.

    Unless the program has a handler for SIGTERM, the first call on the main thread installs one
    that requests a stop. Further SIGTERMs are ignored, because a scheduler and a launcher may both
    send one; SIGKILL still terminates the process. A program's own handler can call
    `symmem.request_stop`.

    Args:
        group: any argument that `symmem.group` accepts; the default is the world.
    """
    _stop.watch()
    return combined(Value.ANY, _stop.requested, "should stop", group) != 0


def request_stop() -> None:
    """Request a stop: the next `symmem.should_stop` returns True on all ranks of its group.

    It does not wait, and may be called on any thread and in signal handlers.
    """
    _stop.request()
