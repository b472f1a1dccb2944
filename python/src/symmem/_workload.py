"""The workload of `python -m symmem.verify`: which tensors are made, summed and dropped, and when.

It is composed before anything runs, from the flags alone, so every rank knows every row of the
report, also those that a divergence cuts off.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from symmem._c.constants import TYPES, Reduction

CHURN_BLOCKS = 12
CHURN_UNIT = 256 << 10
CHURN_STRIDE = 8
CHURN_CHECKS = 64
LARGEST_VALUE = 997
"""Values, and sums of them over some hundred ranks, are exact in float32 up to here."""


@dataclass(frozen=True)
class Config:
    """What the flags say."""

    cases: int = 8
    rounds: int = 2
    elements: int = 256 << 10
    churn: int = 0
    groups: int = 1
    seed: int = 1
    skew: bool = False
    exact: bool = False
    """Whether bits are compared: cases are of all types and reductions in turns."""


class Action(Enum):
    """What a step does."""

    MAKE = auto()
    DROP = auto()
    FILL = auto()
    REDUCE = auto()
    NOISE = auto()


@dataclass(frozen=True)
class Step:
    """One action on the tensor in a slot; `group` is where it lives, `row` where it is counted."""

    action: Action
    slot: int = 0
    elements: int = 0
    row: int = 0


@dataclass(frozen=True)
class Row:
    """One all-reduce of the report."""

    name: str
    round: int
    group: int
    churn: bool
    elements: int
    value: float
    op: str = ""
    dtype: str = ""
    """The reduction and the type where bits are compared."""
    seed: int = 0


SIZES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int32": 4, "int64": 8}
"""Bytes of the types that have more than one."""


@dataclass
class Program:
    """The steps, and the rows that they fill."""

    config: Config
    steps: list[Step] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    live: list[tuple[int, int]] = field(default_factory=list)
    _free: list[int] = field(default_factory=list)
    _slots: int = 0
    _counted: int = 0
    _drawn: int = 0

    @classmethod
    def compose(cls, config: Config) -> Program:
        """Work out what a configuration means."""
        made = cls(config)
        draws = random.Random(f"churn {config.seed}")
        for number in range(1, config.rounds + 1):
            made._churn(number, draws)
            for group in range(config.groups):
                made._cases(number, group)
            while made.live:
                made._drop(made.live.pop()[0])
        return made

    def _churn(self, number: int, draws: random.Random) -> None:
        config = self.config
        stride = max(CHURN_STRIDE, config.churn // CHURN_CHECKS)
        for n in range(1, config.churn + 1):
            self.steps.append(Step(Action.NOISE))
            self._churn_once(draws)
            if self.live and n % stride == 0:
                self._drawn += 1
                slot, elements = draws.choice(self.live)
                value = float(LARGEST_VALUE + 1 + self._drawn % LARGEST_VALUE)
                group = self._drawn % config.groups
                self._reduce(
                    [
                        (
                            slot,
                            elements,
                            Row(f"{number}.churn{n}", number, group, True, elements, value),
                        )
                    ]
                )

    def _churn_once(self, draws: random.Random) -> None:
        largest = max(self.config.elements, CHURN_UNIT)
        elements = draws.choice([largest // 4, largest // 2, largest])
        grow = draws.randrange(20) < 11
        total = sum(n for _, n in self.live)
        if not self.live or (grow and total + elements <= CHURN_BLOCKS * largest):
            self.live.append((self._make(elements), elements))
        else:
            self._drop(self.live.pop(draws.randrange(len(self.live)))[0])

    def _cases(self, number: int, group: int) -> None:
        made = []
        for case in range(1, self.config.cases + 1):
            self.steps.append(Step(Action.NOISE))
            elements = self.config.elements
            value = float(1 + self._counted % LARGEST_VALUE)
            self._counted += 1
            row = Row(f"{number}.{case}", number, group, False, elements, value)
            made.append((self._make(elements), elements, row))
        self._reduce(made)
        for slot, _, _ in made:
            self._drop(slot)

    def _reduce(self, blocks: list[tuple[int, int, Row]]) -> None:
        first = len(self.rows)
        self.rows += [self._turn(row, first + i) for i, (_, _, row) in enumerate(blocks)]
        for action in (Action.FILL, Action.REDUCE):
            for i, (slot, elements, _) in enumerate(blocks):
                self.steps.append(Step(action, slot, elements, first + i))

    def _turn(self, row: Row, at: int) -> Row:
        """Give a row the type and the reduction whose turn it is, if bits are compared."""
        if not self.config.exact:
            return row
        dtype = list(TYPES)[at % len(TYPES)]
        op = Reduction(at // len(TYPES) % len(Reduction)).name.lower()
        return replace(
            row,
            name=f"{row.name} {op} {dtype}",
            elements=row.elements * SIZES["float32"] // SIZES.get(dtype, 1),
            value=0.0,
            op=op,
            dtype=dtype,
            seed=(self.config.seed << 20) + at,
        )

    def _make(self, elements: int) -> int:
        if self._free:
            slot = self._free.pop()
        else:
            slot, self._slots = self._slots, self._slots + 1
        self.steps.append(Step(Action.MAKE, slot, elements))
        return slot

    def _drop(self, slot: int) -> None:
        self.steps.append(Step(Action.DROP, slot))
        self._free.append(slot)


def in_group(group: int, rank: int, ranks: int) -> bool:
    """Report whether a rank is in a group.

    Any two groups of more than half of the ranks overlap.
    """
    return group == 0 or (rank - (group - 1)) % ranks < ranks // 2 + 1


def members(group: int, ranks: int) -> list[int]:
    """List the ranks of a group."""
    return [r for r in range(ranks) if in_group(group, r, ranks)]


def expected(value: float, ranks: int) -> float:
    """Sum what so many ranks contribute."""
    return value * ranks * (ranks + 1) / 2
