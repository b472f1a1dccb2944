"""The instructions of the checked primitives, which Triton and CUDA C++ include as inline PTX.

All threads of a block run the instructions of a primitive. The operands are OK, which is the
result, PAD, CHANNEL, SITE and, for one peer, PEER. The first warp communicates. A lane that fails
branches to `failure`. After a wait, the whole block knows whether any lane has failed.
"""

from __future__ import annotations

from symmem._device import layout
from symmem._device.layout import Kind, Row

_BEGIN = f"""
.reg .pred p;
.reg .b32 lane, bad, count, kind, who, failed, number, rank, size, sent, seen, epoch, tag;
.reg .b32 low, high, polls, old, offset, row;
.reg .b64 at, own, remote, slot, word, found, begun, now, limit;
mov.b32 bad, 0;
mov.b32 who, 0;
mov.b64 word, 0;
mov.b64 found, 0;
mov.b32 row, ROW;
mov.b32 lane, %tid.z;
mov.b32 count, %ntid.y;
mov.b32 old, %tid.y;
mad.lo.u32 lane, lane, count, old;
mov.b32 count, %ntid.x;
mov.b32 old, %tid.x;
mad.lo.u32 lane, lane, count, old;
barrier.sync 0;
setp.ge.u32 p, lane, 32;
@p bra collected;
ld.volatile.global.v4.u32 {{failed, number, rank, size}}, [PAD];
mov.b32 kind, {Kind.ARGUMENT};
setp.ge.u32 p, CHANNEL, {layout.CHANNELS};
@p bra refuse;
setp.ge.u32 p, SITE, {layout.SITES};
@p bra refuse;
"""

# All lanes of the first warp communicate, each with one rank.
_ALL = f"""
mul.wide.u32 at, CHANNEL, 8;
add.u64 at, at, PAD;
mov.b32 sent, 0;
mov.b32 seen, 0;
COUNT
mul.wide.u32 own, lane, 8;
add.u64 own, own, PAD;
ld.global.u64 remote, [own+{layout.PEERS}];
shfl.sync.idx.b32 sent, sent, 0, 31, -1;
shfl.sync.idx.b32 seen, seen, 0, 31, -1;
mov.b32 who, lane;
setp.ge.u32 p, lane, size;
@p bra collected;
"""
_ARRIVALS = """
setp.eq.u32 p, lane, 0;
@p atom.relaxed.gpu.global.add.u32 {0}, [at+{1}], 1;
"""

# The first lane communicates with a peer.
_ONE = f"""
setp.ne.u32 p, lane, 0;
@p bra collected;
setp.ge.u32 p, PEER, size;
@p bra refuse;
mov.b32 who, PEER;
mad.lo.u32 offset, CHANNEL, {layout.RANKS}, PEER;
mul.wide.u32 at, offset, 8;
add.u64 at, at, PAD;
COUNT
mul.wide.u32 own, PEER, 8;
add.u64 own, own, PAD;
ld.global.u64 remote, [own+{layout.PEERS}];
"""

# Computes the tag, and the offset in a pad of the channel's first slot.
_TAG = f"""
setp.ne.u32 p, failed, 0;
@p bra fail;
shl.b32 tag, number, 24;
shl.b32 offset, CHANNEL, 12;
or.b32 tag, tag, offset;
or.b32 tag, tag, SITE;
mul.lo.u32 offset, CHANNEL, {3 * layout.ROW};
add.u32 offset, offset, {layout.SLOTS};
"""

# Sets `old` to the offset of row 0 or 1, by the epoch's parity, or of row 2.
_TURN = f"""
and.b32 old, epoch, 1;
mul.lo.u32 old, old, {layout.ROW};
"""
_THIRD = f"mov.b32 old, {Row.SIGNAL * layout.ROW};\n"


def _slot(rank: str, pad: str) -> str:
    """Set `slot` to the address of a rank's slot on a pad, in the row at the offset `old`."""
    return f"""mad.lo.u32 old, {rank}, 8, old;
add.u32 old, old, offset;
cvt.u64.u32 slot, old;
add.u64 slot, slot, {pad};
"""


_SEND = f"""
add.u32 epoch, sent, 1;
TURN
{_slot("rank", "remote")}mov.b64 word, {{tag, epoch}};
st.release.sys.global.u64 [slot], word;
"""

_AWAIT = f"""
add.u32 epoch, seen, 1;
TURN
{_slot("who", "PAD")}mov.b64 word, {{tag, epoch}};
mov.b32 polls, 0;
mov.b64 begun, 0;
poll:
ld.acquire.sys.global.u64 found, [slot];
setp.eq.u64 p, found, word;
@p bra collected;
mov.b32 kind, {Kind.DIFFERENT};
mov.b64 {{low, high}}, found;
sub.u32 high, high, epoch;
setp.ge.s32 p, high, 0;
setp.ne.and.u64 p, found, 0, p;
@p bra failure;
add.u32 polls, polls, 1;
and.b32 old, polls, 63;
setp.ne.u32 p, old, 0;
@p bra poll;
ld.volatile.global.u32 failed, [PAD];
setp.ne.u32 p, failed, 0;
@p bra fail;
and.b32 old, polls, 1023;
setp.ne.u32 p, old, 0;
@p bra timed;
ld.global.u64 at, [PAD+{layout.STOP}];
setp.eq.u64 p, at, 0;
@p bra timed;
ld.volatile.global.u32 old, [at];
mov.b32 kind, {Kind.STOPPED};
setp.ne.u32 p, old, 0;
@p bra failure;
timed:
mov.u64 now, %globaltimer;
setp.eq.u64 p, begun, 0;
@p mov.b64 begun, now;
@p ld.global.u64 limit, [PAD+{layout.TIMEOUT}];
sub.u64 now, now, begun;
setp.le.u64 p, now, limit;
@p bra poll;
mov.b32 kind, {Kind.TIMEOUT};
bra failure;
"""

# The reader of a peer's data checks that the peer has not begun to write the next data. A reader
# that has only peeked at the signal expects the one that it has not taken.
_UNCHANGED = f"""
mov.b32 epoch, seen;
TURN
{_slot("who", "PAD")}mov.b64 word, {{tag, epoch}};
fence.acq_rel.sys;
ld.relaxed.sys.global.u64 found, [slot];
setp.eq.u64 p, found, word;
@p bra collected;
mov.b32 kind, {Kind.OVERWRITTEN};
bra failure;
"""
_PEEK_UNCHANGED = _UNCHANGED.replace("mov.b32 epoch, seen;", "add.u32 epoch, seen, 1;")

# A writer marks the slot before it writes data. A mark replaces the previous signal by a tag of 0.
_MARK = f"""
mov.b32 epoch, sent;
TURN
{_slot("rank", "remote")}mov.b32 tag, 0;
mov.b64 word, {{tag, epoch}};
st.relaxed.sys.global.u64 [slot], word;
fence.acq_rel.sys;
"""

# A rank's first failure is written to all pads, and ends the waits of all ranks. A rank that fails
# because of a peer only reports where it was.
_END = f"""
bra collected;
refuse:
setp.ne.u32 p, lane, 0;
@p bra collected;
mov.b32 who, rank;
bra failure;
fail:
mov.b32 kind, {Kind.PEER};
failure:
mov.b32 bad, 1;
atom.relaxed.gpu.global.cas.b32 old, [PAD+{layout.REPORTED}], 0, 1;
setp.ne.u32 p, old, 0;
@p bra collected;
mov.b32 old, 0;
report:
mul.wide.u32 own, old, 8;
add.u64 own, own, PAD;
ld.global.u64 remote, [own+{layout.PEERS}];
mul.wide.u32 at, rank, {layout.REPORT};
add.u64 at, at, remote;
st.relaxed.sys.global.u32 [at+{layout.REPORTS + 4}], who;
st.relaxed.sys.global.u64 [at+{layout.REPORTS + 8}], word;
st.relaxed.sys.global.u64 [at+{layout.REPORTS + 16}], found;
st.relaxed.sys.global.u32 [at+{layout.REPORTS + 24}], CHANNEL;
st.relaxed.sys.global.u32 [at+{layout.REPORTS + 28}], SITE;
st.relaxed.sys.global.u32 [at+{layout.REPORTS + 32}], row;
fence.acq_rel.sys;
st.relaxed.sys.global.u32 [at+{layout.REPORTS}], kind;
add.u32 old, old, 1;
setp.lt.u32 p, old, size;
@p bra report;
setp.eq.u32 p, kind, {Kind.PEER};
@p bra collected;
fence.acq_rel.sys;
mov.b32 old, 0;
tell:
mul.wide.u32 own, old, 8;
add.u64 own, own, PAD;
ld.global.u64 remote, [own+{layout.PEERS}];
st.relaxed.sys.global.u32 [remote], kind;
add.u32 old, old, 1;
setp.lt.u32 p, old, size;
@p bra tell;
collected:
"""

_TOGETHER = """
bar.warp.sync -1;
setp.ne.u32 p, bad, 0;
barrier.red.popc.u32 count, 0, p;
setp.eq.u32 p, count, 0;
selp.u32 OK, 1, 0, p;
"""
_APART = "mov.u32 OK, 1;\n"

_SIGNALS = "ld.volatile.global.u32 {0}, [at+{1}];\n"
_NEXT_SIGNAL = "atom.relaxed.gpu.global.add.u32 {0}, [at+{1}], 1;\n"


def _arrivals(word: str) -> str:
    return _ARRIVALS.format(word, layout.ARRIVALS + (4 if word == "seen" else 0))


def _signals(form: str, word: str) -> str:
    return form.format(word, layout.SIGNALS + (4 if word == "seen" else 0))


def _all(row: Row, count: str, *steps: str, end: str = _TOGETHER) -> str:
    body = _ALL.replace("COUNT", count) + _TAG + "".join(steps).replace("TURN", _TURN)
    return (_BEGIN + body + _END + end).replace("row, ROW", f"row, {row}")


def _one(count: str, *steps: str, end: str = _TOGETHER) -> str:
    body = _ONE.replace("COUNT", count) + _TAG + "".join(steps).replace("TURN", _THIRD)
    return (_BEGIN + body + _END + end).replace("row, ROW", f"row, {Row.SIGNAL}")


PRIMITIVES = {
    "barrier": _all(Row.ARRIVE, _arrivals("sent") + _arrivals("seen"), _SEND, _AWAIT),
    "arrive": _all(Row.ARRIVE, _arrivals("sent"), _SEND, end=_APART),
    "wait": _all(Row.ARRIVE, _arrivals("seen"), _AWAIT),
    "signal": _one(_signals(_NEXT_SIGNAL, "sent"), _SEND, end=_APART),
    "wait_signal": _one(_signals(_NEXT_SIGNAL, "seen"), _AWAIT),
    "peek_signal": _one(_signals(_SIGNALS, "seen"), _AWAIT),
    "mark": _one(_signals(_SIGNALS, "sent"), _MARK),
    "unchanged": _one(_signals(_SIGNALS, "seen"), _UNCHANGED),
    "peek_unchanged": _one(_signals(_SIGNALS, "seen"), _PEEK_UNCHANGED),
}
"""The instructions of each primitive, with the operands OK, PAD, CHANNEL, SITE and PEER."""


def instructions(name: str, *operands: str, escape: str = "%") -> str:
    """Return a primitive as inline assembly.

    Args:
        name: the primitive.
        operands: the operands, in the order of OK, PAD, CHANNEL, SITE and PEER.
        escape: how a percent sign is written.
    """
    text = PRIMITIVES[name].replace("%", escape)
    for word, operand in zip(("OK", "PAD", "CHANNEL", "SITE", "PEER"), operands, strict=False):
        text = text.replace(word, operand)
    return "{" + text + "}"
