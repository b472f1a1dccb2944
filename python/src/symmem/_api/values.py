"""Values that ranks compare or combine on the host: no stream and no GPU takes part."""

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

_MOST_LINES = 4096
"""How many callers of values a group keeps: a program that keeps
compiling code has ever more."""


def agree(value: SupportsIndex | float | str, name: str, group: GroupLike = None) -> None:
    """Compare a value across all ranks, on the host, in a microsecond or two.

    Call it where ranks must take the same branch: with the size of a batch, a learning rate, a
    choice, a configuration. It uses no stream and no GPU, may be called between replays of graphs
    and from any thread, and waits for the n-th call under the name on every rank; names do not wait
    for each other.

    Args:
        value: an integer of 64 bits, a bool, a float or a text of up to 1 MiB. Floats are equal if
            their bits are equal, and all NaNs are equal; an integer never equals a float. Errors
            quote the first 120 bytes of a text.
        name: a name for the value, such as "batch size": 1 to 128 bytes, at most 256 in a group.
        group: as `symmem.group` takes it; the world unless given.

    Raises:
        DivergenceError: on all ranks, where the values differ; `sides` has each rank's value, line
            and last ten values. The group stays usable.
        TimeoutError: a rank does not arrive. This is final for the group, as is `RankLostError`.
    """
    # Like combined, with fewer steps, since programs call it very often.
    found = find(group)
    frame = _frame(1)
    try:
        of, code, at = found.agreed[name]
    except KeyError:
        of, code, at = b"", None, 0
    if code is not frame.f_code or at != frame.f_lasti:
        of = _packed(found, frame, name, _AGREE)
        code = None if found.runtime.callsites > 1 else frame.f_code
        found.agreed[name] = (of, code, frame.f_lasti)
    try:
        number = _number(value)
    except struct.error:
        if isinstance(value, str):
            _agree_on_text(found, frame, value, name)
            return
        if isinstance(value, Integral) or not isinstance(value, Real):
            number = _number(_checked(value))
        else:
            of = _packed(found, frame, name, _AGREE_FLOAT)
            number = _float(value)
    if failed := found.library.value(of, number):
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
    """Combine a value of each rank, on the host, and return the result: see `symmem.agree`.

    Args:
        value: an integer of 64 bits; for "any" and "all" anything that is true or false.
        name: a name for the value, as `symmem.agree` takes it.
        op: "any" or "all" reports whether the value is true on any rank or on all; "min", "max" and
            "sum" are numbers, and the sum wraps around at 64 bits.
        group: as `symmem.group` takes it; the world unless given.
    """
    operation = _OPERATIONS.get(op)
    if operation is None:
        raise errors.InvalidError(f"op {op!r}: one of {', '.join(_OPERATIONS)}")
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
        """Compare which step begins."""
        found = find(self._group)
        what = self._name
        if self._arguments:
            what += f"({', '.join(f'{k}={_said(v)}' for k, v in self._arguments.items())})"
        text = what.encode()
        frame = _frame(1)
        site = found.runtime.site(frame)
        found.library.call("symmem_step", found.handle, len(text), text, site)

    def __exit__(self, *_: object) -> None:
        """Do nothing: the next step compares how many collectives this one has launched."""


def step(name: str, group: GroupLike = None, **arguments: object) -> Step:
    """Guard a step of the program: `with symmem.step("decode", batch=8):`.

    At its begin the ranks compare the name and the arguments, and how many collectives of the group
    each of them has launched since the step before. Where they differ all get the `DivergenceError`
    of `symmem.agree`, and a rank that is in a collective which the others have not launched is
    named at once. Collectives in replays of PyTorch's graphs are not counted.
    SYMMEM_STEP_GUARD=0 in the environment of all ranks turns it off.

    Args:
        name: which step it is.
        group: as `symmem.group` takes it; the world unless given.
        arguments: numbers, text, None, and tuples or lists of them; with the name 1024 bytes at
            most.
    """
    return Step(name, group, arguments)


def _said(value: object) -> str:
    """Format an argument of a step. Tensors are refused, since formatting one waits for the GPU."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(_said, value))})"
    raise errors.InvalidError(f"an argument of a step is a {type(value).__name__}, not a number")


def _checked(value: object) -> int:
    """Return an integer of 64 bits, or raise: ctypes would truncate a longer one."""
    try:
        number = index(value)  # type: ignore[arg-type]
    except TypeError:
        raise errors.InvalidError(
            f"the value is a {type(value).__name__}: an integer is needed, and agree also takes a "
            "float or a text"
        ) from None
    if -(1 << 63) <= number < 1 << 63:
        return number
    raise errors.InvalidError(f"the value {number} has more than 64 bits")


def _packed(found: Group, frame: FrameType, name: str, operation: int) -> bytes:
    """Pack the arguments that all calls of one instruction share, once."""
    runtime = found.runtime
    # An instruction has one line, and many callers.
    site = runtime.site(frame) if runtime.callsites > 1 else 0
    key = (id(frame.f_code), frame.f_lasti, name, operation, site)
    if kept := found.values.get(key):
        return kept[0]
    text = name.encode()
    site = site or runtime.site(frame)
    of = _value(found.handle, operation, site, len(text), text)
    if len(found.values) >= _MOST_LINES:
        found.values.clear()
        found.agreed.clear()
    # The code is kept so that its id stays its own.
    found.values[key] = (of, frame.f_code)
    return of


def combined(operation: int, value: SupportsIndex, name: str, group: GroupLike) -> int:
    """Combine a value, with the line that called the caller as call site."""
    found = find(group)
    frame = _frame(2)
    of = _packed(found, frame, name, operation)
    number = c.c_int64(_checked(value))
    if code := found.library.value(of, c.byref(number)):
        raise found.library.error(code)
    return number.value
