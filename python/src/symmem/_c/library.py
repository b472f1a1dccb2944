"""Loads libsymmem.so with ctypes and converts its error codes to exceptions.

The library is the file that SYMMEM_LIBRARY names or, by default, the one in the package folder. It
is loaded on first use and stays loaded until the process exits.
"""

from __future__ import annotations

import ctypes as c
import json
import os
import re
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from symmem import errors
from symmem._c.arguments import Arguments, NormArguments, PermuteArguments, RouteArguments
from symmem._c.constants import ABI_MAJOR, OK, SEGMENT_SHIFT, SHORT, Code, Note, Word
from symmem._c.interrupt import Answers

ENV_LIBRARY = "SYMMEM_LIBRARY"
POOLS = 16

_CLASSES: dict[int, type[errors.SymmemError]] = {
    Code.INVALID: errors.InvalidError,
    Code.CLOSED: errors.ClosedError,
    Code.UNSUPPORTED: errors.UnsupportedError,
    Code.OUT_OF_MEMORY: errors.OutOfMemoryError,
    Code.SIZE: errors.InvalidError,
    Code.DOUBLE_FREE: errors.MemoryUseError,
    Code.FREED: errors.MemoryUseError,
    Code.FOREIGN: errors.MemoryUseError,
    Code.CAPTURING: errors.CapturingError,
    Code.OUT_OF_RANGE: errors.OutOfRangeError,
    Code.ABORTED: errors.AbortedError,
    Code.DIVERGENCE: errors.DivergenceError,
    Code.TIMEOUT: errors.TimeoutError,
    Code.RANK_LOST: errors.RankLostError,
    Code.FORKED: errors.ForkedError,
    Code.NOT_OPEN: errors.ClosedError,
    Code.LIVE: errors.InvalidError,
    Code.PANIC: errors.InternalError,
    Code.INTERRUPTED: errors.InterruptedError,
    Code.BUSY: errors.BusyError,
    Code.SUSPENDED: errors.SuspendedError,
}

_DIVERGENCES: dict[str, type[errors.DivergenceError]] = {
    "call": errors.MismatchError,
    "place": errors.DeadlockError,
    "messages": errors.MessageError,
}
"""The classes for kinds of divergence. All other kinds raise `DivergenceError` itself."""

_u64, _i64, _int, _size, _ptr = c.c_uint64, c.c_int64, c.c_int, c.c_size_t, c.c_void_p
_text_in = [_size, c.c_char_p]
_text_out = [_size, c.c_char_p, c.POINTER(_size)]

_STATUS: dict[str, list[Any]] = {
    "symmem_last_error": _text_out,
    "symmem_last_error_json": _text_out,
    "symmem_open": _text_in,
    "symmem_close": [_int],
    "symmem_set_poll": [_ptr, _ptr],
    "symmem_is_open": [],
    "symmem_world": [c.POINTER(_u64)],
    "symmem_world_open": [*_text_in, c.POINTER(_u64)],
    "symmem_world_close": [_u64, _int],
    "symmem_world_describe": [_u64, *_text_out],
    "symmem_world_stats": [_u64, *_text_out],
    "symmem_world_set_check": [_u64, _int],
    "symmem_world_group_open": [
        *[_u64, *_text_in, _size, c.POINTER(c.c_int32), _i64],
        c.POINTER(_u64),
    ],
    "symmem_group_set_timeout": [_u64, _i64],
    "symmem_group_open": [*_text_in, _size, c.POINTER(c.c_int32), c.POINTER(_u64)],
    "symmem_group_close": [_u64],
    "symmem_group_describe": [_u64, *_text_out],
    "symmem_group_error": [_u64],
    "symmem_group_abort": [_u64],
    "symmem_group_set_path": [_u64, _int],
    "symmem_pool_open": [_u64, *_text_in, c.POINTER(_int)],
    "symmem_pool_close": [_int, _int],
    "symmem_alloc": [_int, _size, _u64, c.POINTER(_ptr)],
    "symmem_free": [_ptr],
    "symmem_select": [_int],
    "symmem_reserve_on": [_int, _size, _u64, _u64],
    "symmem_trim": [_int, _size],
    "symmem_pool_suspend": [_int, _int, c.POINTER(_u64)],
    "symmem_pool_resume": [_int],
    "symmem_group_suspend": [_u64, c.POINTER(_u64)],
    "symmem_group_resume": [_u64],
    "symmem_scope_end": [_u64, _u64, c.POINTER(_i64)],
    "symmem_register_pending": [_u64, _int, _u64],
    "symmem_attach": [_u64, _u64, *_text_in, c.POINTER(_u64)],
    "symmem_detach": [_u64, _int],
    "symmem_is_symmetric": [_u64, _size, _ptr],
    "symmem_peer_addresses": [_u64, _size, _ptr, _size, c.POINTER(_u64)],
    "symmem_nccl_window": [_u64, _size, _ptr, *[c.POINTER(_u64)] * 3],
    "symmem_signal_words_open": [_u64, _size, _size, c.POINTER(_u64)],
    "symmem_signal_words_close": [_ptr],
    "symmem_pad_open": [_u64, _size, c.POINTER(c.c_char_p), c.POINTER(_u64)],
    "symmem_pad_close": [_u64],
    "symmem_pad_check": [_u64],
    "symmem_pad_explain": [_u64, *_text_out],
    "symmem_windows": [_u64, _size, c.POINTER(_i64), c.POINTER(_size)],
    "symmem_locate": [_ptr, *_text_out],
    "symmem_explain": [_u64, _int, _i64, _int, _ptr, _ptr, *_text_out],
    "symmem_take_warning": _text_out,
    "symmem_check": [_u64],
    "symmem_note": [_int, _i64, _i64],
    "symmem_value": [c.c_char_p, c.POINTER(_i64)],
    "symmem_agree_string": [_u64, *_text_in, *_text_in, c.c_uint32],
    "symmem_step": [_u64, *_text_in, c.c_uint32],
    "symmem_callsites": [],
    "symmem_site": [*_text_in, c.POINTER(c.c_uint32)],
    "symmem_collective": [_u64, _int, _i64, _int, _int, _int, _int, _ptr, _ptr, _u64],
    "symmem_call": [c.POINTER(Arguments)],
    "symmem_all_reduce": [_u64, _i64, _int, _int, _int, _ptr, _ptr, _u64],
    "symmem_premul_sum": [_u64, _int, _i64, _int, c.c_double, _int, _int, _ptr, _ptr, _u64],
    "symmem_all_gather": [_u64, _i64, _int, _int, _ptr, _ptr, _u64],
    "symmem_reduce_scatter": [_u64, _i64, _int, _int, _int, _ptr, _ptr, _u64],
    "symmem_broadcast": [_u64, _i64, _int, _int, _int, _ptr, _ptr, _u64],
    "symmem_all_to_all": [_u64, _i64, _int, _int, _ptr, _ptr, _u64],
    "symmem_dispatch": [_u64, c.POINTER(RouteArguments), _u64],
    "symmem_combine": [_u64, c.POINTER(RouteArguments), _u64],
    "symmem_route_layout": [c.POINTER(RouteArguments), _int, _ptr],
    "symmem_permute": [_u64, c.POINTER(PermuteArguments), _u64],
    "symmem_unpermute": [_u64, c.POINTER(PermuteArguments), _u64],
    "symmem_permute_layout": [c.POINTER(PermuteArguments), _int, _ptr],
    "symmem_norm": [_u64, c.POINTER(NormArguments), _u64],
    "symmem_scattered_norm": [_u64, c.POINTER(NormArguments), _u64],
    "symmem_all_to_all_v": [_u64, _size, *[c.POINTER(_i64)] * 4, _int, _ptr, _ptr, _u64],
    "symmem_all_gather_v": [_u64, _size, *[c.POINTER(_i64)] * 2, _int, _ptr, _ptr, _u64],
    "symmem_reduce_scatter_v": [_u64, _size, *[c.POINTER(_i64)] * 2, _int, _int, _ptr, _ptr, _u64],
    "symmem_reduce": [_u64, _i64, _int, _int, _int, _int, _ptr, _ptr, _u64],
    "symmem_gather": [_u64, _i64, _int, _int, _ptr, _ptr, _u64],
    "symmem_scatter": [_u64, _i64, _int, _int, _ptr, _ptr, _u64],
    "symmem_send": [_u64, _i64, _int, _int, _int, _ptr, _u64],
    "symmem_recv": [_u64, _i64, _int, _int, _int, _ptr, c.POINTER(c.c_int32), _u64],
    "symmem_barrier": [_u64, _u64],
    "symmem_stream_synchronize": [_u64],
    "symmem_stream_forget": [_u64],
    "symmem_streams_idle": [_int],
    "symmem_stream_wait": [_u64, _u64],
    "symmem_event_record": [_u64, c.POINTER(_u64)],
    "symmem_event_done": [_u64],
    "symmem_event_synchronize": [_u64],
    "symmem_event_wait": [_u64, _i64],
    "symmem_event_close": [_u64],
    "nccl_allocator_register_segments_with_comm": [_u64],
}


def _class_of(code: int, data: dict[str, Any]) -> type[errors.SymmemError]:
    """Return the exception class for an error code and the error's data."""
    kind = (data.get("divergence") or {}).get("kind")
    if code == Code.DIVERGENCE and kind in _DIVERGENCES:
        return _DIVERGENCES[kind]
    if code == Code.TIMEOUT and (data.get("timeout") or {}).get("absent"):
        return errors.AbsentError
    return _CLASSES.get(code, errors.SymmemError)


def exception(data: dict[str, Any]) -> errors.SymmemError:
    """Return the exception for the data of an error; see symmem_last_error_json."""
    code = int(data["code"])
    message = readable(str(data.get("message") or f"symmem failed with code {code}"))
    return _class_of(code, data)(message, code=code, data=data)


def where() -> Path:
    """Return the path of the library."""
    chosen = os.environ.get(ENV_LIBRARY)
    return Path(chosen) if chosen else Path(__file__).parent.with_name("libsymmem.so")


def _open(path: Path) -> c.CDLL:
    if not path.exists():
        raise errors.LibraryError(
            f"{path} does not exist; install the wheel, build the library with `make lib`, or set "
            f"{ENV_LIBRARY} to its path"
        )
    try:
        return c.CDLL(str(path), mode=c.RTLD_LOCAL)
    except OSError as e:
        raise errors.LibraryError(
            f"loading {path}: {e}. The library needs Linux with glibc, because with musl (Alpine) "
            "a Go library cannot be loaded into a running process"
        ) from e


class Library:
    """The loaded library. Methods raise an exception if a call returns an error code.

    It is safe for concurrent use. Other Python threads can run during blocking calls.
    """

    def __init__(self, path: Path):
        self.path = path
        self.raw = _open(path)
        self._prepare()
        # This function has no argument types, so that ctypes does not convert its arguments. They
        # are passed as bytes objects, which ctypes passes as pointers.
        self.value: Callable[..., int] = self.raw["symmem_value"]
        self.words = self._shared_words()
        self._warnings = self.words[Word.WARNINGS]
        # Explains a timeout, in addition to the library. It is called with the error at hand.
        self.explain_timeout: Callable[[], str] = str
        self.answers = Answers(self.raw.symmem_set_poll, self.warning)
        self.answers.from_main()

    def _prepare(self) -> None:
        version = self.raw.symmem_abi_version
        version.restype = c.c_uint32
        if (found := version() // 1000) != ABI_MAJOR:
            raise errors.LibraryError(
                f"{self.path} has interface version {found}, but this package needs version "
                f"{ABI_MAJOR}"
            )
        for name, arguments in _STATUS.items():
            function = getattr(self.raw, name)
            function.restype = _int
            function.argtypes = arguments
        self.raw.symmem_set_site.restype = c.c_uint32
        self.raw.symmem_set_site.argtypes = [c.c_uint32]

    def _shared_words(self) -> Any:
        function = self.raw.symmem_generation
        function.restype = c.POINTER(_i64)
        address = c.cast(function(), _ptr).value
        assert address is not None
        return memoryview((_i64 * len(Word)).from_address(address)).cast("B").cast("q")

    def error(self, code: int) -> errors.SymmemError:
        """Return the exception for the error code of this thread's latest call.

        If a signal handler ended the call, raise the handler's exception instead.
        """
        if code == Code.INTERRUPTED and (raised := self.answers.take()) is not None:
            raise raised
        data: dict[str, Any] = {}
        try:
            data = json.loads(self._text(self.raw.symmem_last_error_json, codes=False))
        except ValueError:
            data = {}
        if data.get("code") != code:
            data = {"code": code, "message": self._text(self.raw.symmem_last_error, codes=False)}
        if code == Code.TIMEOUT and (more := self.explain_timeout()):
            data["message"] = f"{data.get('message')}; {more}"
        return exception(data)

    def in_pool(self, address: int) -> bool:
        """Return whether an address is in any pool."""
        length = _size(0)
        return not self.raw.symmem_locate(address, 0, None, c.byref(length))

    def group_error(self, group: int) -> errors.SymmemError | None:
        """Return the fault that made the group with a handle fail, or None."""
        code = self.raw.symmem_group_error(group)
        return self.error(code) if code else None

    def warning(self) -> dict[str, Any] | None:
        """Remove and return the library's next warning. If there is none, return None cheaply."""
        if self.words[Word.WARNINGS] == self._warnings:
            return None
        seen = self.words[Word.WARNINGS]
        text = self.text("symmem_take_warning")
        if not text:
            self._warnings = seen
            return None
        found: dict[str, Any] = json.loads(text)
        return found

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function that returns an error code, and raise an exception on an error."""
        if code := getattr(self.raw, name)(*arguments):
            raise self.error(code)

    def text(self, name: str, *arguments: Any) -> str:
        """Call a function that returns a string."""
        return self._text(getattr(self.raw, name), *arguments)

    def json(self, name: str, *arguments: Any) -> dict[str, Any]:
        """Call a function that returns a JSON object."""
        found: dict[str, Any] = json.loads(self.text(name, *arguments))
        return found

    def number(self, name: str, *arguments: Any) -> int:
        """Call a function that stores a handle or a number in its last parameter, and return it."""
        kind = _STATUS[name][-1]._type_
        out = kind(0)
        self.call(name, *arguments, c.byref(out))
        return int(out.value or 0)

    def _text(self, function: Callable[..., int], *arguments: Any, codes: bool = True) -> str:
        size = 4096
        while True:
            buffer = c.create_string_buffer(size)
            length = _size(0)
            code = function(*arguments, size, buffer, c.byref(length))
            if length.value >= size and (code == SHORT or not codes):
                size = length.value + 1
                continue
            if codes and code != OK:
                raise self.error(code)
            return buffer.value.decode("utf-8", "replace")


_NOTE = re.compile(r"note (-?\d+) of kind (\d+)")
_NOTES = {
    Note.TENSOR_AT: "a PyTorch tensor at {place}",
    Note.TENSOR_BYTES: "a PyTorch tensor of {value} bytes",
    Note.FREE_AT: "free memory in PyTorch's cache at {place}",
    Note.FREE_BYTES: "{value} bytes of free memory in PyTorch's cache",
    Note.LAYOUT: "PyTorch tensors with layout {value:x}",
}


def readable(message: str) -> str:
    """Replace the numbers of this package's notes in a message by descriptions."""

    def words(found: re.Match[str]) -> str:
        value, kind = int(found[1]), int(found[2])
        if kind not in _NOTES:
            return found[0]
        segment, offset = value >> SEGMENT_SHIFT, value & ((1 << SEGMENT_SHIFT) - 1)
        place = f"segment {segment} offset {offset:#x}"
        return _NOTES[Note(kind)].format(value=value & (1 << 64) - 1, place=place)

    found = _NOTE.sub(words, message)
    if "a PyTorch tensor at" in found and "free memory in PyTorch's cache at" in found:
        found += (
            "; garbage collection frees tensors at different times on different ranks, so drop "
            "the last reference at the same line on all ranks, or call gc.collect() there"
        )
    return found


_lock = threading.Lock()


@cache
def _loaded() -> Library:
    return Library(where())


def library() -> Library:
    """Return the library, loading it on the first call."""
    with _lock:
        return _loaded()
