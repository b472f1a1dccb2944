"""Runs signal handlers and issues warnings while a call to the library waits.

If a handler raises an exception, as the default handler of SIGINT does, or a filter turns a warning
into an error, the wait ends and the call raises the exception. Otherwise the wait continues.
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
    """The callbacks that the library polls while a call waits, and the exceptions they raised.

    Args:
        set_poll: symmem_set_poll.
        take_warning: returns the library's next warning, or None.
    """

    def __init__(self, set_poll: Callable[[Any, Any], int], take_warning: TakeWarning):
        self._set_poll = set_poll
        self._take_warning = take_warning
        self._raised: dict[int, BaseException] = {}
        self._main: Any = None
        self._aside = _POLL(self._answer)
        set_poll(None, self._aside)
        # The library must not call Python once the interpreter shuts down, even if a call waits.
        atexit.register(set_poll, None, None)

    def from_main(self) -> None:
        """Make waits run signal handlers from now on, if this is the main thread."""
        if self._main is not None or threading.current_thread() is not threading.main_thread():
            return
        questions = self._questions()
        next(questions)
        self._main = _POLL(questions.__next__)
        self._set_poll(self._main, self._aside)

    def take(self) -> BaseException | None:
        """Remove and return the exception that ended this thread's wait, or None."""
        return self._raised.pop(threading.get_ident(), None)

    def _questions(self) -> Generator[int]:
        """Yield, for each poll on the main thread, whether the wait should end.

        This is a generator because Python runs signal handlers before the first instruction of a
        function that ctypes calls, so that their exceptions would be lost. A generator resumes
        inside its `try` statement, where it can catch them.
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
        """Issue the library's warnings, and return whether the wait should end."""
        try:
            while (found := self._take_warning()) is not None:
                warn(errors.LateWarning(found.get("message", ""), data=found), again=True)
        except Exception as e:  # A filter has turned the warning into an error.
            self._raised[threading.get_ident()] = e
            return _END
        return _CONTINUE
