"""Values that ranks compare or combine on the host, without a stream or a GPU."""

from __future__ import annotations

import ctypes as c
import struct
import sys
from numbers import Integral, Real
from operator import index
from typing import TYPE_CHECKING, Any, Literal, overload

from symmem import errors
from symmem._c.constants import Value
from symmem._rank.session import find

if TYPE_CHECKING:
    from types import FrameType
    from typing import SupportsIndex

    from symmem._api.terms import GroupLike, ValueOp
    from symmem._rank.group import Group

_OPERATIONS = {
    "any": Value.ANY,
    "all": Value.ALL,
    "min": Value.MIN,
    "max": Value.MAX,
    "sum": Value.SUM,
}
_AGREE, _AGREE_FLOAT = int(Value.AGREE), int(Value.AGREE_FLOAT)
_frame = sys._getframe
_number = struct.Struct("q").pack
_float = struct.Struct("d").pack
_value = struct.Struct("QiIN128s").pack
"""Packs struct symmem_value."""

_MAX_CALLERS = 4096
"""The number of callers that a group caches. It is limited because a program that compiles code at
run time has more and more callers."""


def agree(value: SupportsIndex | float | str, name: str, group: GroupLike = None) -> None:
    """Check that a value is the same on all ranks. The check runs on the host in 1 to 2 us.

    Use it where all ranks must take the same branch, for example with a batch size, a learning rate
    or a configuration. It uses no stream and no GPU, so it may be called between graph replays and
    on any thread. The n-th call with a name waits for the n-th call with that name on every other
    rank. Calls with different names do not wait for each other.

    Args:
        value: a 64-bit integer, a bool, a float or a string of up to 1 MiB. Floats are compared by
            their bits, except that all NaNs are equal; an integer never equals a float. Errors
            quote the first 120 bytes of a string.
        name: a name for the value, such as "batch size", of 1 to 128 bytes. A group can have 256
            names.
        group: any argument that `symmem.group` accepts; the default is the world.

    Raises:
        DivergenceError: the values differ. All ranks get the error; its `sides` hold each rank's
            value, line and last ten values. The group stays usable.
        TimeoutError: a rank did not arrive. The group has failed, as it has after `RankLostError`.
    """
    # This does what combined does, with fewer steps, because programs call it very often.
    found = find(group)
    frame = _frame(1)
    try:
        packed, code, offset = found.agreed[name]
    except KeyError:
        packed, code, offset = b"", None, 0
    if code is not frame.f_code or offset != frame.f_lasti:
        packed = _packed(found, frame, name, _AGREE)
        code = None if found.runtime.callsites > 1 else frame.f_code
        found.agreed[name] = (packed, code, frame.f_lasti)
    try:
        number = _number(value)
    except struct.error:
        if isinstance(value, str):
            _agree_on_text(found, frame, value, name)
            return
        if isinstance(value, Integral) or not isinstance(value, Real):
            number = _number(_checked(value))
        else:
            packed = _packed(found, frame, name, _AGREE_FLOAT)
            number = _float(value)
    if failed := found.library.value(packed, number):
        raise found.library.error(failed)


def _agree_on_text(found: Group, frame: FrameType, value: str, name: str) -> None:
    text, called = value.encode("utf-8", "surrogatepass"), name.encode()
    site = found.runtime.site(frame)
    found.library.call(
        "symmem_agree_string", found.handle, len(called), called, len(text), text, site
    )


@overload
def combine(
    value: object, name: str, op: Literal["any", "all"], group: GroupLike = ...
) -> bool: ...


@overload
def combine(
    value: SupportsIndex, name: str, op: Literal["min", "max", "sum"], group: GroupLike = ...
) -> int: ...


def combine(value: Any, name: str, op: ValueOp, group: GroupLike = None) -> bool | int:
    """Combine one value from each rank on the host, and return the result. See `symmem.agree`.

    Args:
        value: a 64-bit integer; for "any" and "all", any object, which is converted to bool.
        name: a name for the value, as in `symmem.agree`.
        op: "any" or "all" returns whether the value is true on any rank or on all ranks. "min",
            "max" and "sum" return an integer; a sum wraps around at 64 bits.
        group: any argument that `symmem.group` accepts; the default is the world.
    """
    operation = _OPERATIONS.get(op)
    if operation is None:
        raise errors.InvalidError(f"unknown op {op!r}; want one of {', '.join(_OPERATIONS)}")
    if operation is Value.ANY or operation is Value.ALL:
        return combined(operation, bool(value), name, group) != 0
    return combined(operation, value, name, group)


class Step:
    """The context manager that `symmem.step` returns."""

    __slots__ = ("_arguments", "_group", "_name")

    def __init__(self, name: str, group: GroupLike, arguments: dict[str, object]):
        self._name = name
        self._group = group
        self._arguments = arguments

    def __enter__(self) -> None:
        """Compare the name and the arguments of the step that begins."""
        found = find(self._group)
        what = self._name
        if self._arguments:
            what += f"({', '.join(f'{k}={_formatted(v)}' for k, v in self._arguments.items())})"
        text = what.encode()
        frame = _frame(1)
        site = found.runtime.site(frame)
        found.library.call("symmem_step", found.handle, len(text), text, site)

    def __exit__(self, *_: object) -> None:
        """Do nothing. The next step compares the numbers of collectives launched in this one."""


def step(name: str, group: GroupLike = None, **arguments: object) -> Step:
    """Compare a step of the program across ranks: `with symmem.step("decode", batch=8):`.

    When the step begins, the ranks compare its name, its arguments, and the number of collectives
    of the group that each has launched since the previous step. If these differ, all ranks get a
    `DivergenceError` as from `symmem.agree`. A rank that is still in a collective which the others
    have not launched is named immediately. Collectives replayed in PyTorch's graphs do not count.
    To disable the comparison, set SYMMEM_STEP_GUARD=0 in the environment of all ranks.

    Args:
        name: the name of the step.
        group: any argument that `symmem.group` accepts; the default is the world.
        arguments: numbers, strings, None, and tuples or lists of these. Formatted, they and the
            name may have up to 1024 bytes.
    """
    return Step(name, group, arguments)


def _formatted(value: object) -> str:
    """Format an argument of a step. Refuse tensors, because formatting one waits for the GPU."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(_formatted, value))})"
    raise errors.InvalidError(
        f"an argument of a step is a {type(value).__name__}; want a number, a string, None, or a "
        "tuple or list of these"
    )


def _checked(value: object) -> int:
    """Return value as an integer. Refuse more than 64 bits, which ctypes would truncate."""
    try:
        number = index(value)  # type: ignore[arg-type]
    except TypeError:
        raise errors.InvalidError(
            f"the value is a {type(value).__name__}; want an integer (agree also accepts floats "
            "and strings)"
        ) from None
    if -(1 << 63) <= number < 1 << 63:
        return number
    raise errors.InvalidError(f"the value {number} has more than 64 bits")


def _packed(found: Group, frame: FrameType, name: str, operation: int) -> bytes:
    """Pack the arguments shared by all calls from one instruction, and cache the result."""
    runtime = found.runtime
    # An instruction is on one line but may have several callers, so more frames need another key.
    site = runtime.site(frame) if runtime.callsites > 1 else 0
    key = (id(frame.f_code), frame.f_lasti, name, operation, site)
    if kept := found.values.get(key):
        return kept[0]
    text = name.encode()
    site = site or runtime.site(frame)
    packed = _value(found.handle, operation, site, len(text), text)
    if len(found.values) >= _MAX_CALLERS:
        found.values.clear()
        found.agreed.clear()
    # Keep a reference to the code, so that no other object gets its id.
    found.values[key] = (packed, frame.f_code)
    return packed


def combined(operation: int, value: SupportsIndex, name: str, group: GroupLike) -> int:
    """Combine a value. The call site is the line that called the caller of this function."""
    found = find(group)
    frame = _frame(2)
    packed = _packed(found, frame, name, operation)
    number = c.c_int64(_checked(value))
    if code := found.library.value(packed, c.byref(number)):
        raise found.library.error(code)
    return number.value
