"""Implements barriers and signals of handles on GPUs, as kernels of one warp with a timeout."""

from __future__ import annotations

import ctypes as c
import time
from collections import deque
from enum import IntEnum
from functools import cache
from typing import TYPE_CHECKING, Any

from symmem import errors
from symmem._c.constants import Code
from symmem._rank.group import LONGEST_TIMEOUT
from symmem._rank.streams import HostEvent
from symmem._torch.cuda import driver_call
from symmem._torch.pytorch import pytorch

if TYPE_CHECKING:
    from symmem._rank.group import Group

_AGREEMENT_LIMIT = 30.0  # maximum wait for the ranks to agree on the cause of a fault, in seconds

RANKS = 32
"""The maximum number of ranks: in a barrier, each lane of the warp waits for one rank."""

CHANNELS = 256
"""The number of channels for barriers."""

ROW = 8 + 4 * RANKS + 8
"""The size in bytes of a row. Behind each signal pad, there is a row for each channel. It holds the
number of barriers that this rank has entered and, from offset 8 on, the latest such number of each
rank (32 bits each). `python/backend/symmetric.cpp` allocates the rows."""

RECORD = 4 + RANKS
"""The number of 32-bit words that a failing kernel writes to host memory: 1, the channel, the
operation, an unused word and, for each rank, why the wait for it has failed (0 if it has not)."""

TIMEOUT, STOPPED = 1, 2


class Operation(IntEnum):
    """The operations of the kernels."""

    BARRIER = 0
    PUT = 1  # waits until a word of a peer's pad is 0, and sets it to 1
    WAIT = 2  # waits until a word of this rank's pad is 1, and sets it to 0


_BEGIN = """
mov.b32 lane, %tid.x;
mov.b32 kind, 0;
mov.b32 polls, 0;
mov.b64 begun, 0;
setp.ge.u32 p, lane, 32;
@p bra end;
mul.wide.u32 at, pad, 8;
add.u64 at, at, pads;
ld.global.u64 own, [at];
add.u64 own, own, row;
"""

_BARRIER = """
mov.b32 epoch, 0;
setp.eq.u32 p, lane, 0;
@p atom.relaxed.gpu.global.add.u32 epoch, [own], 1;
shfl.sync.idx.b32 epoch, epoch, 0, 31, -1;
add.u32 epoch, epoch, 1;
mov.b32 who, lane;
setp.ge.u32 p, lane, size;
@p bra collected;
mul.wide.u32 at, lane, 8;
add.u64 at, at, pads;
ld.global.u64 slot, [at];
add.u64 slot, slot, row;
mul.wide.u32 at, pad, 4;
add.u64 slot, slot, at;
st.release.sys.global.u32 [slot+8], epoch;
mul.wide.u32 at, lane, 4;
add.u64 slot, own, at;
poll:
ld.acquire.sys.global.u32 found, [slot+8];
sub.u32 found, found, epoch;
setp.ge.s32 p, found, 0;
@p bra collected;
"""

_SIGNAL = """
mov.b32 who, peer;
setp.ne.u32 p, lane, 0;
@p bra collected;
poll:
atom.acq_rel.sys.global.cas.b32 found, [own], FROM, TO;
setp.eq.u32 p, found, FROM;
@p bra collected;
"""

# Reads the clock every 64 polls. Every 1024 polls, it also ends silently if another operation of
# the handle has failed, and reads the word with which the host stops kernels.
_POLL = f"""
add.u32 polls, polls, 1;
and.b32 old, polls, 63;
setp.ne.u32 p, old, 0;
@p bra poll;
and.b32 old, polls, 1023;
setp.ne.u32 p, old, 0;
@p bra timed;
ld.volatile.global.u32 old, [record];
setp.ne.u32 p, old, 0;
@p bra collected;
setp.eq.u64 p, stop, 0;
@p bra timed;
ld.volatile.global.u32 old, [stop];
mov.b32 kind, {STOPPED};
setp.ne.u32 p, old, 0;
@p bra failure;
mov.b32 kind, 0;
timed:
mov.u64 now, %globaltimer;
setp.eq.u64 p, begun, 0;
@p mov.b64 begun, now;
sub.u64 now, now, begun;
setp.le.u64 p, now, timeout;
@p bra poll;
mov.b32 kind, {TIMEOUT};
failure:
mul.wide.u32 at, who, 4;
add.u64 at, at, record;
st.relaxed.sys.global.u32 [at+16], kind;
fence.acq_rel.sys;
collected:
bar.warp.sync -1;
setp.eq.u32 p, kind, 0;
@p bra end;
st.relaxed.sys.global.u32 [record+4], channel;
st.relaxed.sys.global.u32 [record+8], OPERATION;
fence.acq_rel.sys;
st.relaxed.sys.global.u32 [record], 1;
end:
"""


def _body(operation: Operation) -> str:
    signal = _SIGNAL.replace("FROM", str(operation - 1)).replace("TO", str(2 - operation))
    wait = _BARRIER if operation is Operation.BARRIER else signal
    return _BEGIN + wait + _POLL.replace("OPERATION", str(int(operation)))


BODIES = {operation: _body(operation) for operation in Operation}
"""The instructions of the kernels. They access the row or word at the offset `row` of the pad of
rank `pad`, which is this rank in a barrier. Errors of signals name the rank `peer`."""

_PARAMETERS = {
    "pads": 64, "row": 64, "timeout": 64, "stop": 64, "record": 64, "pad": 32, "size": 32,
    "channel": 32, "peer": 32,
}  # fmt: skip

_PARAMETER_LIST = ", ".join(f".param .u{bits} p_{name}" for name, bits in _PARAMETERS.items())
_REGISTERS = "".join(f".reg .b{bits} {name};\n" for name, bits in _PARAMETERS.items())
_LOADS = "".join(f"ld.param.u{bits} {name}, [p_{name}];\n" for name, bits in _PARAMETERS.items())


def _entry(operation: Operation) -> str:
    return f"""
.visible .entry symmem_{operation.name.lower()}({_PARAMETER_LIST})
{{
{_REGISTERS}.reg .pred p;
.reg .b32 lane, kind, who, epoch, found, polls, old;
.reg .b64 at, own, slot, begun, now;
{_LOADS}{BODIES[operation]}ret;
}}
"""


MODULE = ".version 6.4\n.target sm_70\n.address_size 64\n" + "".join(map(_entry, Operation))


@cache
def _kernels(device: int) -> tuple[dict[Operation, c.c_void_p], c.c_void_p]:
    """Load the kernels into a device's primary context, once. Return them and the context."""
    number, context = c.c_int(), c.c_void_p()
    module, functions = c.c_void_p(), {}
    driver_call("cuDeviceGet", c.byref(number), device)
    driver_call("cuDevicePrimaryCtxRetain", c.byref(context), number)  # never released
    driver_call("cuCtxPushCurrent_v2", context)
    try:
        driver_call("cuModuleLoadData", c.byref(module), MODULE.encode())
        for operation in Operation:
            functions[operation] = c.c_void_p()
            name = f"symmem_{operation.name.lower()}".encode()
            driver_call("cuModuleGetFunction", c.byref(functions[operation]), module, name)
    finally:
        driver_call("cuCtxPopCurrent_v2", c.byref(c.c_void_p()))
    return functions, context


class _Config(c.Structure):
    """CUlaunchConfig of the CUDA driver."""

    _fields_ = [
        *((name, c.c_uint) for name in ("x", "y", "z", "threads", "two", "three", "shared")),
        ("stream", c.c_void_p),
        ("attributes", c.c_void_p),
        ("count", c.c_uint),
    ]


@cache
def _launcher() -> Any:
    """Return cuLaunchKernelEx. cuLaunchKernel has 11 arguments, which ctypes converts slowly."""
    launch = c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_void_p, c.c_void_p, c.c_void_p)
    return launch(("cuLaunchKernelEx", c.CDLL("libcuda.so.1")))


_MAX_CACHED = 4096
"""The maximum number of operations, and of streams, whose launches a handle caches."""


_retired: deque[tuple[list[HostEvent], Any]] = deque()
"""Events after the last operations of handles, and the memory of the handles' records."""

_kept: list[Any] = []
"""The memory of records that operations may use at any time, such as in CUDA graphs."""


class Queued:
    """Queues the barriers and signals of a handle on the current stream of a GPU.

    Args:
        group: the group of the handle.
        device: the device of this rank.
        pads: the address of an array, in GPU memory, of the addresses of all ranks' signal pads.
        pad_bytes: the size of a signal pad.
        offset: the offset of the first barrier row from the beginning of a pad.
        timeout_ms: the default timeout of a wait.
    """

    def __init__(
        self, group: Group, device: int, pads: int, pad_bytes: int, offset: int, timeout_ms: int
    ):
        self._group, self._device, self._pads = group, device, pads
        self._pad_bytes, self._offset, self._timeout_ms = pad_bytes, offset, timeout_ms
        self._stop: int = group.describe()["stop_word"]
        torch = pytorch().module
        # The default device of the program may be a GPU.
        self._memory = torch.zeros(RECORD, dtype=torch.int32, device="cpu", pin_memory=True)
        self.record = (c.c_int32 * RECORD).from_address(self._memory.data_ptr())
        self._functions, self._context = _kernels(device)
        self._launch = _launcher()
        self._raw_stream = pytorch().raw_stream
        self._home: int = self._raw_stream(device)  # the stream on which the pad was allocated
        # Values: a function, the address of an array of argument addresses, and these objects.
        self._packed: dict[tuple[Operation, int, int, int], tuple[Any, int, Any]] = {}
        self._configs: dict[int, tuple[int, _Config]] = {}

    def queue(self, operation: Operation, peer: int, channel: int, timeout_ms: int) -> None:
        """Queue an operation on the current stream.

        Raises:
            TimeoutError: an earlier operation of the handle has failed, because of late ranks.
            RankLostError: the process of a rank has ended.
            SymmemError: the group has failed, which stops its kernels.
        """
        if self.record[0]:
            raise self._failure()
        packed = self._packed.get((operation, peer, channel, timeout_ms))
        if packed is None:
            packed = self._pack(operation, peer, channel, timeout_ms)
        stream = self._raw_stream(self._device)
        config = self._configs.get(stream)
        if config is None:
            config = self._configure(stream)
        if self._launch(config[0], packed[0], packed[1], None):
            # This thread has no current device, or another one.
            driver_call("cuCtxPushCurrent_v2", self._context)
            code = self._launch(config[0], packed[0], packed[1], None)
            driver_call("cuCtxPopCurrent_v2", c.byref(c.c_void_p()))
            if code:
                raise errors.SymmemError(f"cuLaunchKernelEx failed with CUresult {code}")

    def retire(self) -> None:
        """Keep the record until the queued operations have ended, and the pad in use until then.

        It must be called before the pad is freed and the streams are destroyed. If an event cannot
        be recorded, as during a capture, the record is kept forever, and the pad is not protected.
        """
        library, events = self._group.library, []
        try:
            events = [HostEvent(library, stream) for stream in (self._home, *self._configs)]
            for event in events:
                library.call("symmem_stream_wait", self._home, event.handle)
        except errors.SymmemError:
            _kept.append(self._memory)
            return
        _retired.append((events, self._memory))
        for _ in range(len(_retired)):
            try:
                entry = _retired.popleft()
            except IndexError:  # Another thread, or the garbage collector, has popped the rest.
                return
            if not all(event.done() for event in entry[0]):
                _retired.append(entry)

    def _configure(self, stream: int) -> tuple[int, _Config]:
        if len(self._configs) >= _MAX_CACHED:
            self.retire()
            self._configs.clear()
        config = _Config(1, 1, 1, 32, 1, 1, 0, stream, None, 0)
        found = self._configs[stream] = c.addressof(config), config
        return found

    def _pack(
        self, operation: Operation, peer: int, channel: int, timeout_ms: int
    ) -> tuple[Any, int, Any]:
        rank, size = self._group.rank, self._group.size
        barrier = operation is Operation.BARRIER
        channels = CHANNELS if barrier else self._pad_bytes // 4 // size
        if not 0 <= channel < channels:
            raise errors.InvalidError(
                f"the channel must be from 0 to {channels - 1}, not {channel}"
            )
        if not 0 <= peer < size:
            raise errors.InvalidError(f"the group has no rank {peer}")
        if not 0 <= timeout_ms <= LONGEST_TIMEOUT * 1000:
            raise errors.InvalidError(f"timeout_ms is {timeout_ms}; want 0 to a day")
        sender = rank if operation is Operation.PUT else peer
        row = self._offset + channel * ROW if barrier else 4 * (channel * size + sender)
        numbers = {
            "pads": self._pads, "row": row, "stop": self._stop, "size": size, "channel": channel,
            "timeout": (timeout_ms or self._timeout_ms) * 1_000_000, "peer": peer,
            "record": self._memory.data_ptr(), "pad": peer if operation is Operation.PUT else rank,
        }  # fmt: skip
        kinds = {32: c.c_uint32, 64: c.c_uint64}
        values = [kinds[bits](numbers[name]) for name, bits in _PARAMETERS.items()]
        pointers = (c.c_void_p * len(values))(*(c.addressof(value) for value in values))
        found = self._functions[operation].value, c.addressof(pointers), (pointers, values)
        if len(self._packed) >= _MAX_CACHED:
            self._packed.clear()
        self._packed[operation, peer, channel, timeout_ms] = found
        return found

    def _await_fault(self) -> errors.SymmemError | None:
        """Return the fault of the group, once the ranks have agreed on it."""
        end = time.monotonic() + _AGREEMENT_LIMIT
        while True:
            failure = self._group.library.group_error(self._group.handle)
            if failure is not None or time.monotonic() >= end:
                return failure
            time.sleep(0.001)

    def _failure(self) -> errors.SymmemError:
        """Return the error of an operation that has failed."""
        group = self._group
        missing = [r for r in range(group.size) if self.record[4 + r] == TIMEOUT]
        failure = group.library.group_error(group.handle)
        doing, did = _TEXTS[Operation(self.record[2])]
        waited = (
            f"rank {group.ranks[group.rank]} waited {doing} on channel {self.record[1]} of a "
            f"handle of group {group.name}"
        )
        if missing:
            ranks = ", ".join(str(group.ranks[r]) for r in missing)
            have = f"rank {ranks} has" if len(missing) == 1 else f"ranks {ranks} have"
            text = f"Timed out: {waited}, and {have} not {did}"
        else:
            text = f"Stopped: {waited}"
            failure = self._await_fault() or errors.AbortedError(
                "the group was stopped", code=Code.ABORTED
            )
        if failure is not None:
            return type(failure)(f"{failure}. {text}", code=failure.code, data=failure.data)
        if more := group.library.explain_timeout():
            text = f"{text}; {more}"
        data = {"timeout": {"missing": [group.ranks[r] for r in missing]}}
        return errors.TimeoutError(text, code=Code.TIMEOUT, data=data)


_TEXTS = {
    Operation.BARRIER: ("in a barrier", "arrived"),
    Operation.PUT: ("to signal", "taken the previous signal"),
    Operation.WAIT: ("for a signal", "sent it"),
}
