"""The constants of symmem.h, and the corresponding PyTorch names."""

from __future__ import annotations

from enum import IntEnum

from symmem.errors import InvalidError

ABI_MAJOR = 1

OK = 0
SHORT = 18
NEVER_SEEN = -1
"""Differs from every value of the shared words."""


class Code(IntEnum):
    """The error codes of calls to the library."""

    INVALID = 1
    CLOSED = 2
    UNSUPPORTED = 3
    OUT_OF_MEMORY = 4
    SIZE = 5
    DOUBLE_FREE = 6
    FREED = 7
    FOREIGN = 8
    CAPTURING = 9
    OUT_OF_RANGE = 10
    ABORTED = 11
    DIVERGENCE = 12
    TIMEOUT = 13
    RANK_LOST = 14
    FORKED = 15
    NOT_OPEN = 16
    LIVE = 17
    SHORT = 18
    PANIC = 19
    FAILED = 20
    INTERRUPTED = 21
    BUSY = 22
    SUSPENDED = 23


class Word(IntEnum):
    """Indices of the shared words."""

    PENDING = 0
    WINDOWS = 1
    FAULTS = 2
    REFUSED = 3
    WARNINGS = 4


class Type(IntEnum):
    """Element types."""

    FLOAT64 = 0
    FLOAT32 = 1
    FLOAT16 = 2
    BFLOAT16 = 3
    INT8 = 4
    INT32 = 5
    INT64 = 6
    UINT8 = 7
    INT16 = 8
    UINT16 = 9
    UINT32 = 10
    UINT64 = 11


class Value(IntEnum):
    """Operations on one number per rank."""

    AGREE = 1
    ANY = 2
    ALL = 3
    MIN = 4
    MAX = 5
    SUM = 6
    AGREE_FLOAT = 8


ANY_SOURCE = -1
"""The source of a receive that accepts a message from any rank."""


class Path(IntEnum):
    """Paths of a collective. DEFAULT is the group's choice, and AUTO the tuning table's choice."""

    DEFAULT = 0
    AUTO = 1
    PLAIN = 2
    WINDOW = 3
    DIRECT = 4
    TWO_LEVEL = 5


class Check(IntEnum):
    """Check levels: how much ranks compare."""

    DEFAULT = 0
    OFF = 1
    REGISTRATION = 2
    EVERY = 3


class Note(IntEnum):
    """Kinds of notes in a pool's history about PyTorch's tensors, which the library does not see.

    A place is a single number, with the ordinal of a segment in the high bits and the offset in the
    low SEGMENT_SHIFT bits. Notes also record free memory in PyTorch's cache, because it determines
    where the next tensor is placed.
    """

    TENSOR_AT = 0x7053_0001
    TENSOR_BYTES = 0x7053_0002
    FREE_AT = 0x7053_0003
    FREE_BYTES = 0x7053_0004
    LAYOUT = 0x7053_0005


SEGMENT_SHIFT = 44

TYPES: dict[str, Type] = {
    "float64": Type.FLOAT64,
    "float32": Type.FLOAT32,
    "float16": Type.FLOAT16,
    "bfloat16": Type.BFLOAT16,
    "int8": Type.INT8,
    "int32": Type.INT32,
    "int64": Type.INT64,
    "uint8": Type.UINT8,
    "int16": Type.INT16,
    "uint16": Type.UINT16,
    "uint32": Type.UINT32,
    "uint64": Type.UINT64,
}
"""The types that can be reduced, by the names of PyTorch's dtypes."""

BYTES = {1: Type.UINT8, 2: Type.FLOAT16, 4: Type.INT32, 8: Type.INT64}
"""The types with which elements are copied, by the size of an element in bytes."""

FORMULAS = ("ranks", "tree", "rounded-tree")
"""The formulas of deterministic reductions."""


def check_level(name: str) -> Check:
    """Convert the name of a check level: off, registration, every or default."""
    try:
        return Check[name.upper()]
    except (KeyError, AttributeError):
        raise InvalidError(
            f"unknown check level {name!r}; use one of off, registration, every"
        ) from None


def path_choice(name: str) -> Path:
    """Convert the name of a path: auto, plain, window, direct, two-level or default."""
    try:
        return Path[name.upper().replace("-", "_")]
    except (KeyError, AttributeError):
        raise InvalidError(
            f"unknown path {name!r}; use one of auto, plain, window, direct, two-level"
        ) from None


def formula(deterministic: object) -> str:
    """Return the name of the formula for the argument `deterministic` of `symmem.init`."""
    name = deterministic
    if isinstance(deterministic, bool):
        name = "ranks" if deterministic else "any"
    if name not in ("any", *FORMULAS):
        raise InvalidError(
            f"deterministic is {deterministic!r}, but must be True, False, any, ranks, tree or "
            "rounded-tree"
        )
    return str(name)
