"""Barriers of handles: a kernel of one warp that waits for all ranks, within a timeout."""

from __future__ import annotations

import ctypes as c
from functools import cache
from typing import TYPE_CHECKING, Any

from symmem import errors
from symmem._c.constants import Code
from symmem._torch.cuda import driver_call
from symmem._torch.pytorch import pytorch

if TYPE_CHECKING:
    from symmem._rank.group import Group

RANKS = 32
"""The maximum number of ranks: each lane of a warp waits for one."""

CHANNELS = 256

ROW = 8 + 4 * RANKS + 8
"""The bytes of a channel's row behind each signal pad: this rank's count of barriers, at offset 8
the latest count of each rank, and padding. Counts have 32 bits. `python/backend/symmetric.cpp`
allocates the rows."""

RECORD = 4 + RANKS
"""The number of 32-bit words that a failing kernel writes to host memory: whether it has failed,
the channel, two unused words, and why the wait for each rank has failed."""

TIMEOUT, STOPPED = 1, 2

BODY = """
mov.b32 lane, %tid.x;
mov.b32 kind, 0;
setp.ge.u32 p, lane, 32;
@p bra end;
mul.wide.u32 at, rank, 8;
add.u64 at, at, pads;
ld.global.u64 own, [at];
add.u64 own, own, row;
mov.b32 epoch, 0;
setp.eq.u32 p, lane, 0;
@p atom.relaxed.gpu.global.add.u32 epoch, [own], 1;
shfl.sync.idx.b32 epoch, epoch, 0, 31, -1;
add.u32 epoch, epoch, 1;
setp.ge.u32 p, lane, size;
@p bra collected;
mul.wide.u32 at, lane, 8;
add.u64 at, at, pads;
ld.global.u64 slot, [at];
add.u64 slot, slot, row;
mul.wide.u32 at, rank, 4;
add.u64 slot, slot, at;
st.release.sys.global.u32 [slot+8], epoch;
mul.wide.u32 at, lane, 4;
add.u64 slot, own, at;
mov.b32 polls, 0;
mov.b64 begun, 0;
poll:
ld.acquire.sys.global.u32 found, [slot+8];
sub.u32 found, found, epoch;
setp.ge.s32 p, found, 0;
@p bra collected;
add.u32 polls, polls, 1;
and.b32 old, polls, 63;
setp.ne.u32 p, old, 0;
@p bra poll;
and.b32 old, polls, 1023;
setp.ne.u32 p, old, 0;
@p bra timed;
setp.eq.u64 p, stop, 0;
@p bra timed;
ld.volatile.global.u32 old, [stop];
mov.b32 kind, 2;
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
mov.b32 kind, 1;
failure:
mul.wide.u32 at, lane, 4;
add.u64 at, at, record;
st.relaxed.sys.global.u32 [at+16], kind;
fence.acq_rel.sys;
collected:
bar.warp.sync -1;
setp.eq.u32 p, kind, 0;
@p bra end;
st.relaxed.sys.global.u32 [record+4], channel;
fence.acq_rel.sys;
st.relaxed.sys.global.u32 [record], 1;
end:
"""

_PARAMETERS = {
    "pads": 64, "row": 64, "timeout": 64, "stop": 64, "record": 64, "rank": 32, "size": 32,
    "channel": 32,
}  # fmt: skip

_PARAMETER_LIST = ", ".join(f".param .u{bits} p_{name}" for name, bits in _PARAMETERS.items())
_REGISTERS = "".join(f".reg .b{bits} {name};\n" for name, bits in _PARAMETERS.items())
_LOADS = "".join(f"ld.param.u{bits} {name}, [p_{name}];\n" for name, bits in _PARAMETERS.items())

MODULE = f"""\
.version 6.4
.target sm_70
.address_size 64
.visible .entry symmem_barrier({_PARAMETER_LIST})
{{
{_REGISTERS}.reg .pred p;
.reg .b32 lane, kind, epoch, found, polls, old;
.reg .b64 at, own, slot, begun, now;
{_LOADS}{BODY}ret;
}}
"""


@cache
def _kernel(device: int) -> tuple[c.c_void_p, c.c_void_p]:
    """Load the kernel into a device's primary context, once. Return the function and context."""
    number, context = c.c_int(), c.c_void_p()
    module, function = c.c_void_p(), c.c_void_p()
    driver_call("cuDeviceGet", c.byref(number), device)
    driver_call("cuDevicePrimaryCtxRetain", c.byref(context), number)  # as long as the process
    driver_call("cuCtxPushCurrent_v2", context)
    try:
        driver_call("cuModuleLoadData", c.byref(module), MODULE.encode())
        driver_call("cuModuleGetFunction", c.byref(function), module, b"symmem_barrier")
    finally:
        driver_call("cuCtxPopCurrent_v2", c.byref(c.c_void_p()))
    return function, context


@cache
def _launcher() -> Any:
    """Return cuLaunchKernel, with argument types."""
    launch = c.CFUNCTYPE(c.c_int, c.c_void_p, *[c.c_uint] * 7, c.c_void_p, c.c_void_p, c.c_void_p)
    return launch(("cuLaunchKernel", c.CDLL("libcuda.so.1")))


class Barriers:
    """The barriers of a handle on a GPU. Barriers on different channels are independent.

    Args:
        group: the group of the handle.
        device: the device of this rank.
        pads: the address, on the device, of the addresses of all ranks' signal pads.
        offset: the offset of the rows from the beginning of a pad.
        timeout_ms: the timeout of a wait, unless the caller has another one.
    """

    def __init__(self, group: Group, device: int, pads: int, offset: int, timeout_ms: int):
        self._group, self._device = group, device
        self._pads, self._offset, self._timeout_ms = pads, offset, timeout_ms
        self._stop: int = group.describe()["stop_word"]
        torch = pytorch().module
        self._memory = torch.zeros(RECORD, dtype=torch.int32).pin_memory()
        self.record = (c.c_int32 * RECORD).from_address(self._memory.data_ptr())
        self._function, self._context = _kernel(device)
        self._launch = _launcher()
        self._raw_stream = pytorch().raw_stream
        self._arguments: dict[tuple[int, int], tuple[Any, Any]] = {}

    def queue(self, channel: int, timeout_ms: int) -> None:
        """Queue a barrier on the current stream.

        Raises:
            TimeoutError: ranks did not arrive at an earlier barrier in time.
            RankLostError: the process of a rank has ended.
            SymmemError: the group has failed, which stops its kernels.
        """
        if self.record[0]:
            raise self._failure()
        found = self._arguments.get((channel, timeout_ms))
        if found is None:
            found = self._arguments[channel, timeout_ms] = self._pack(channel, timeout_ms)
        arguments = (
            self._function, 1, 1, 1, 32, 1, 1, 0, self._raw_stream(self._device), found[0], None
        )  # fmt: skip
        if self._launch(*arguments):
            # Another device is current, or none is on this thread.
            driver_call("cuCtxPushCurrent_v2", self._context)
            code = self._launch(*arguments)
            driver_call("cuCtxPopCurrent_v2", c.byref(c.c_void_p()))
            if code:
                raise errors.SymmemError(f"cuLaunchKernel failed with CUresult {code}")

    def _pack(self, channel: int, timeout_ms: int) -> tuple[Any, Any]:
        """Return the array of arguments of a kernel, and the values to which it points."""
        if not 0 <= channel < CHANNELS:
            raise errors.InvalidError(
                f"the channel of a barrier must be from 0 to {CHANNELS - 1}, not {channel}"
            )
        timeout = (timeout_ms or self._timeout_ms) * 1_000_000
        row = self._offset + channel * ROW
        numbers = {
            "pads": self._pads, "row": row, "timeout": timeout, "stop": self._stop,
            "record": self._memory.data_ptr(), "rank": self._group.rank,
            "size": self._group.size, "channel": channel,
        }  # fmt: skip
        kinds = {32: c.c_uint32, 64: c.c_uint64}
        values = [kinds[bits](numbers[name]) for name, bits in _PARAMETERS.items()]
        pointers = (c.c_void_p * len(values))(*(c.addressof(value) for value in values))
        return pointers, values

    def _failure(self) -> errors.SymmemError:
        """Return the error of a barrier that has failed."""
        group = self._group
        found = [r for r in range(group.size) if self.record[4 + r]]
        missing = [group.ranks[r] for r in found if self.record[4 + r] == TIMEOUT]
        place = f"on channel {self.record[1]} of a handle of group {group.name}"
        failure = group.library.group_error(group.handle)
        text = f"Rank {group.ranks[group.rank]} was waiting in a barrier {place}"
        if missing:
            ranks = ", ".join(map(str, missing))
            text = (
                f"Timed out: rank {group.ranks[group.rank]} waited in a barrier {place}, and "
                f"{f'rank {ranks} has' if len(missing) == 1 else f'ranks {ranks} have'} not arrived"
            )
        elif failure is None:
            failure = errors.AbortedError("the group was stopped", code=Code.ABORTED)
        if failure is not None:
            return type(failure)(f"{failure}. {text}", code=failure.code, data=failure.data)
        if more := group.library.explain_timeout():
            text = f"{text}; {more}"
        data = {"timeout": {"missing": missing}}
        return errors.TimeoutError(text, code=Code.TIMEOUT, data=data)
