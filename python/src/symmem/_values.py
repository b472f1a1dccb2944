"""Numbers that ranks compare on the host: no stream and no GPU takes part.

The names end in an underscore where Python has a function of that name, so that
`from symmem import *` hides none.
"""

from __future__ import annotations

import ctypes as c
import sys
from operator import index
from typing import TYPE_CHECKING

from symmem import errors
from symmem._constants import Value
from symmem._session import find

if TYPE_CHECKING:
    from typing import SupportsIndex

    from symmem._terms import GroupLike

_LEAST, _MOST = -(1 << 63), (1 << 63) - 1
_AGREE = int(Value.AGREE)
_frame = sys._getframe


def agree(value: SupportsIndex, name: str, group: GroupLike = None) -> None:
    """Compare a number across all ranks, on the host, in a microsecond or two.

    Call it where ranks must take the same branch: with the size of a batch, a choice, a digest. It
    uses no stream and no GPU, may be called between replays of graphs and from any thread, and
    waits for the n-th call under the name on every rank; names do not wait for each other.

    Args:
        value: an integer of 64 bits, or a bool.
        name: what the value is, such as "batch size": 1 to 128 bytes, at most 256 in a group.
        group: as `symmem.group` takes it; the world unless given.

    Raises:
        DivergenceError: on all ranks, where the values differ; `sides` has each rank's value, line
            and last ten values. The group goes on.
        TimeoutError: a rank does not come. This is final for the group, as is `RankLostError`.
    """
    # As _combine does, but for what this can do without: it is called in every step of a program.
    found = find(group)
    text = name.encode()
    frame = _frame(1)
    file, line = frame.f_code.co_filename, frame.f_lineno
    site = found.runtime.sites.get((file, line)) or found.runtime.site(file, line)
    if code := found.library.value(
        found.handle, _AGREE, len(text), text, _checked(value), site, None
    ):
        raise found.library.error(code)


def any_(value: object, name: str, group: GroupLike = None) -> bool:
    """Report whether the value is true on any rank: see `symmem.agree`."""
    return _combine(Value.ANY, bool(value), name, group) != 0


def all_(value: object, name: str, group: GroupLike = None) -> bool:
    """Report whether the value is true on all ranks: see `symmem.agree`."""
    return _combine(Value.ALL, bool(value), name, group) != 0


def min_(value: SupportsIndex, name: str, group: GroupLike = None) -> int:
    """Return the least value of all ranks: see `symmem.agree`."""
    return _combine(Value.MIN, value, name, group)


def max_(value: SupportsIndex, name: str, group: GroupLike = None) -> int:
    """Return the greatest value of all ranks: see `symmem.agree`."""
    return _combine(Value.MAX, value, name, group)


def sum_(value: SupportsIndex, name: str, group: GroupLike = None) -> int:
    """Return the sum of all ranks' values, which wraps around at 64 bits: see `symmem.agree`."""
    return _combine(Value.SUM, value, name, group)


class Step:
    """What `symmem.step` returns, for `with`."""

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
        site = found.runtime.site(frame.f_code.co_filename, frame.f_lineno)
        found.library.call("symmem_step", found.handle, len(text), text, site)

    def __exit__(self, *_: object) -> None:
        """Do nothing: the next step compares how many collectives this one has launched."""


def step(name: str, group: GroupLike = None, **arguments: object) -> Step:
    """Guard a step of the program: `with symmem.step("decode", batch=8):`.

    At its begin the ranks compare the name and the arguments, and how many collectives of the group
    each of them has launched since the step before. Where they differ all get the `DivergenceError`
    of `symmem.agree`, and a rank that is in a collective which the others have not launched is
    named at once. Collectives in replays of PyTorch's graphs are not counted, since nobody tells of
    them.
    SYMMEM_STEP_GUARD=0 in the environment of all ranks turns it off.

    Args:
        name: which step it is.
        group: as `symmem.group` takes it; the world unless given.
        arguments: numbers, text, None, and tuples or lists of them; with the name 1024 bytes at
            most.
    """
    return Step(name, group, arguments)


def _said(value: object) -> str:
    """Write an argument of a step; a tensor would wait for the GPU."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(_said, value))})"
    raise errors.InvalidError(f"an argument of a step is a {type(value).__name__}, not a number")


def _checked(value: SupportsIndex) -> int:
    """Refuse what has more than 64 bits, which ctypes would cut off."""
    number = index(value)
    if _LEAST <= number <= _MOST:
        return number
    raise errors.InvalidError(f"the value {number} has more than 64 bits")


def _combine(operation: int, value: SupportsIndex, name: str, group: GroupLike) -> int:
    """Make one call for the line that called the caller."""
    found = find(group)
    text = name.encode()
    frame = _frame(2)
    site = found.runtime.site(frame.f_code.co_filename, frame.f_lineno)
    result = c.c_int64()
    library = found.library
    if code := library.value(
        found.handle, operation, len(text), text, _checked(value), site, c.byref(result)
    ):
        raise library.error(code)
    return result.value
