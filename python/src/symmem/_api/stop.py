"""Stopping all ranks after the same step, when one of them is asked to stop."""

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

    A child of fork, which has no steps, begins anew: SIGTERM ends it.
    """

    def __init__(self) -> None:
        self.requested = False
        self._watching = False
        self._masks = _Masks()

    def request(self, *_: object) -> None:
        """Record a request; it is also the handler of SIGTERM."""
        self.requested = True

    def watch(self) -> None:
        """Handle SIGTERM, if this is the main thread and nothing else handles it."""
        if self._watching or threading.current_thread() is not threading.main_thread():
            return
        self._watching = True
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self.request)

    def before_fork(self) -> None:
        """Hold SIGTERM back from a child while it has the handler, which would lose it."""
        if self._handles():
            self._masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])

    def after_fork(self) -> None:
        """Undo `before_fork`."""
        if self._masks.before is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._masks.before)
            self._masks.before = None

    def in_child(self) -> None:
        """Begin anew."""
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
    _stop.watch()
    return combined(Value.ANY, _stop.requested, "should stop", group) != 0


def request_stop() -> None:
    """Ask for a stop: the next `symmem.should_stop` is true on all ranks of its group.

    It waits for nothing, and may be called on any thread and in handlers of signals.
    """
    _stop.request()
