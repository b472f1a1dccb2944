"""Runs blocks of PTX on the CPU: the instructions of the checked primitives, on real memory.

Threads are generators. They give way where they wait for their warp or block, and before each jump
back. Accesses of 4 and 8 bytes are single loads and stores of the CPU.
"""

from __future__ import annotations

import ctypes as c
import re
import time
from collections.abc import Callable, Generator
from typing import Any

THREADS, WARP = 64, 32
MASK = {"32": (1 << 32) - 1, "64": (1 << 64) - 1}
CELLS = {"32": c.c_uint32, "64": c.c_uint64}

Registers = dict[str, int]
Thread = Generator[tuple[str, Any], Any, None]
Line = tuple[str, str, list[str]]
"""The guard, or an empty string, the operation and the operands."""


def parse(text: str) -> tuple[list[Line], dict[str, int]]:
    """Return the instructions of a block, and the positions of its labels."""
    code: list[Line] = []
    labels: dict[str, int] = {}
    for line in text.strip("{}").splitlines():
        if match := re.fullmatch(r"(\w+):", line.strip()):
            labels[match[1]] = len(code)
        elif match := re.fullmatch(r"(?:@(\w+) )?([\w.]+) ?(.*);", line.strip()):
            if match[2] != ".reg":
                operands = re.findall(r"\[[^]]*\]|\{[^}]*\}|[^,\s]+", match[3])
                code.append((match[1] or "", match[2], operands))
        elif line.strip():
            raise AssertionError(f"not an instruction: {line}")
    return code, labels


COMPARE: dict[str, Callable[[int, int], bool]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "ge": lambda a, b: a >= b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
}
BINARY: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "shl": lambda a, b: a << b,
}


def signed(value: int) -> int:
    """Return 32 bits as a signed number."""
    return value - (1 << 32) if value >> 31 else value


class Lane:
    """A thread of a block."""

    def __init__(self, number: int, registers: Registers):
        special = {"%tid.x": number, "%tid.y": 0, "%tid.z": 0, "%ntid.x": THREADS, "%ntid.y": 1}
        self.registers = {**special, **registers}

    def value(self, operand: str) -> int:
        if operand == "%globaltimer":
            return time.monotonic_ns()
        if re.fullmatch(r"-?\d+", operand):
            return int(operand)
        return self.registers[operand]

    def cell(self, operand: str, bits: str, index: int = 0) -> Any:
        base, _, offset = operand.strip("[]").partition("+")
        address = self.value(base) + int(offset or 0) + index * int(bits) // 8
        assert address % (int(bits) // 8) == 0, operand
        return CELLS[bits].from_address(address)

    def run(self, code: list[Line], labels: dict[str, int]) -> Thread:
        at = 0
        while at < len(code):
            guard, name, operands = code[at]
            at += 1
            if guard and not self.registers[guard]:
                continue
            if name == "bra":
                target = labels[operands[0]]
                if target < at:
                    yield ("pause", None)
                at = target
            elif name == "bar.warp.sync":
                yield ("warp", 0)
            elif name.startswith("shfl"):
                self.registers[operands[0]] = yield ("warp", self.value(operands[1]))
            elif name == "barrier.sync":
                yield ("block", 0)
            elif name.startswith("barrier.red.popc"):
                self.registers[operands[0]] = yield ("block", self.value(operands[2]))
            else:
                self.step(name.split("."), operands)

    def step(self, name: list[str], operands: list[str]) -> None:
        """Run an instruction that does not wait."""
        bits = name[-1][1:]
        kind = name[0]
        values = operands[1:]
        if kind in ("ld", "st", "atom"):
            self.access(name, operands)
        elif kind == "setp":
            a, b = (self.value(v) & MASK[bits] for v in values[:2])
            if name[-1][0] == "s":
                a, b = signed(a), signed(b)
            both = bool(self.value(values[2])) if "and" in name else True
            self.registers[operands[0]] = int(COMPARE[name[1]](a, b) and both)
        elif kind == "selp":
            self.registers[operands[0]] = self.value(values[0 if self.value(values[2]) else 1])
        elif kind in ("mov", "cvt"):
            self.move(operands[0], operands[1])
        elif kind == "mad":
            a, b, added = (self.value(v) for v in values)
            self.registers[operands[0]] = (a * b + added) & MASK[bits]
        elif kind != "fence":
            wide = "64" if "wide" in name else bits
            self.registers[operands[0]] = BINARY[kind](*map(self.value, values)) & MASK[wide]

    def access(self, name: list[str], operands: list[str]) -> None:
        """Load, store, or change memory atomically among the blocks of this process."""
        bits = name[-1][1:]
        if name[0] == "ld":
            targets = operands[0].strip("{}").replace(",", " ").split()
            for index, target in enumerate(targets):
                self.registers[target] = self.cell(operands[1], bits, index).value
        elif name[0] == "st":
            self.cell(operands[0], bits).value = self.value(operands[1])
        else:
            cell = self.cell(operands[1], bits)
            old = cell.value
            if "cas" not in name:
                cell.value = (old + self.value(operands[2])) & MASK[bits]
            elif old == self.value(operands[2]):  # A failed exchange writes nothing.
                cell.value = self.value(operands[3])
            self.registers[operands[0]] = old

    def move(self, target: str, source: str) -> None:
        """Copy a register, split 64 bits into halves, or join halves."""
        if target.startswith("{"):
            low, high = target.strip("{}").replace(",", " ").split()
            whole = self.value(source)
            self.registers[low], self.registers[high] = whole & MASK["32"], whole >> 32
        elif source.startswith("{"):
            low, high = source.strip("{}").replace(",", " ").split()
            self.registers[target] = self.value(low) | self.value(high) << 32
        else:
            self.registers[target] = self.value(source)


class Block:
    """The threads of a block while they run."""

    def __init__(self, text: str, registers: Registers):
        code, labels = parse(text)
        self.lanes = [Lane(number, registers) for number in range(THREADS)]
        self.threads = [lane.run(code, labels) for lane in self.lanes]
        self.waits: dict[int, tuple[str, Any]] = {}

    def run(self) -> int:
        """Run all threads, and return the result, which must be the same in all of them."""
        ready: dict[int, Any] = dict.fromkeys(range(THREADS))
        while ready:
            following: dict[int, Any] = {}
            for number, value in ready.items():
                try:
                    wait = self.threads[number].send(value)
                except StopIteration:
                    continue
                if wait[0] == "pause":
                    following[number] = None
                else:
                    self.waits[number] = wait
            self.release(following)
            ready = following
        assert not self.waits, self.waits
        (result,) = {lane.registers["ok"] for lane in self.lanes}
        return result

    def release(self, ready: dict[int, Any]) -> None:
        """Let the threads of a warp or the block continue if all of them wait."""
        for first in range(0, THREADS, WARP):
            self.meet("warp", range(first, first + WARP), ready)
        self.meet("block", range(THREADS), ready)

    def meet(self, scope: str, numbers: range, ready: dict[int, Any]) -> None:
        found = [self.waits.get(number, ("", 0)) for number in numbers]
        if all(wait[0] == scope for wait in found):
            values = [wait[1] for wait in found]
            for number in numbers:
                del self.waits[number]
                ready[number] = sum(values) if scope == "block" else values[0]


def run(text: str, **registers: int) -> bool:
    """Run a primitive in a block, and return its result."""
    return bool(Block(text, registers).run())
