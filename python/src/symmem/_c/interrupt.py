"""Runs handlers of signals and issues warnings while the library waits in a call.

If a handler raises, as that of SIGINT does, or a filter turns a warning into an error, the wait
ends and the call raises the exception. Otherwise the wait continues.
"""

from __future__ import annotations

import atexit
import ctypes as c
import threading
from collections.abc import Callable, Generator
from typing import Any

from symmem import errors
from symmem._c.sites import warn

_POLL = c.CFUNCTYPE(c.c_int)
_CONTINUE, _END = 0, 1

TakeWarning = Callable[[], dict[str, Any] | None]


class Answers:
    """Holds the callbacks that the library polls while a thread waits in it, and what they raised.

    Args:
        set_poll: symmem_set_poll.
        take_warning: take a warning of the library's, if there is one.
    """

    def __init__(self, set_poll: Callable[[Any, Any], int], take_warning: TakeWarning):
        self._set_poll = set_poll
        self._take_warning = take_warning
        self._raised: dict[int, BaseException] = {}
        self._main: Any = None
        self._aside = _POLL(self._answer)
        set_poll(None, self._aside)
        # A thread that still waits when the interpreter ends must not be polled.
        atexit.register(set_poll, None, None)

    def from_main(self) -> None:
        """Run the handlers of signals in waits of this thread, if it is the main one."""
        if self._main is not None or threading.current_thread() is not threading.main_thread():
            return
        questions = self._questions()
        next(questions)
        self._main = _POLL(questions.__next__)
        self._set_poll(self._main, self._aside)

    def take(self) -> BaseException | None:
        """Return the exception that ended this thread's wait, once."""
        return self._raised.pop(threading.get_ident(), None)

    def _questions(self) -> Generator[int]:
        """Answer, each time the library asks the main thread, whether to end the wait.

        Python runs handlers before the first instruction of a function that ctypes calls, where
        their exceptions are lost. A generator resumes after its `yield`, inside the `try`.
        """
        answer = _CONTINUE
        while True:
            try:
                yield answer
                answer = self._answer()
            except GeneratorExit:
                return
            except BaseException as e:
                self._raised[threading.get_ident()] = e
                answer = _END

    def _answer(self) -> int:
        """Issue the library's warnings, on any thread."""
        try:
            while (found := self._take_warning()) is not None:
                warn(errors.LateWarning(found.get("message", ""), data=found), again=True)
        except Exception as e:  # A filter has made an error of the warning.
            self._raised[threading.get_ident()] = e
            return _END
        return _CONTINUE
