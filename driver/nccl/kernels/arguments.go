package kernels

import (
	"time"
	"unsafe"

	"symmem/internal/cuda"
)

// Places are where kernels find the memory of all ranks, as it is mapped here.
type Places struct {
	// Exchange is the exchange memory of each rank.
	Exchange [MaxRanks]uintptr
	// SendAt and RecvAt are the buffers of all ranks, which bulk kernels need.
	SendAt, RecvAt [MaxRanks]uintptr
	// Report is where a fault is reported, Timeout how long kernels wait for peers before that.
	Report  uintptr
	Timeout time.Duration
}

// arguments are those of a kernel: struct Call of src/call.h.
type arguments struct {
	rank, ranks, sendTo, recvFrom, op, divisor uint32
	digest                                     uint64
	send, recv                                 uintptr
	bytes, sendStride, recvStride              int64
	exchange                                   [MaxRanks]uintptr
	timeout                                    time.Duration
	report                                     uintptr
}

// bulkArguments are those of a bulk kernel: struct Bulk of src/call.h.
type bulkArguments struct {
	arguments
	sendAt, recvAt [MaxRanks]uintptr
}

// WithDigest returns a copy of what Params has made, for a call of another digest.
func WithDigest(p cuda.Params, digest uint64) cuda.Params {
	return p.With(int(unsafe.Offsetof(arguments{}.digest)), digest)
}

// Params are the arguments of the i-th piece of a call. The call has its digest: kernels fail where
// ranks differ in it.
func (l *Launch) Params(at *Places, i int) cuda.Params {
	from := int64(i) * l.bytes
	a := arguments{
		rank: uint32(l.Rank), ranks: uint32(l.Ranks), sendTo: l.sendTo, recvFrom: l.recvFrom,
		op: l.op, divisor: l.divisor, digest: l.Digest,
		send: l.Send + uintptr(from), recv: l.Recv + uintptr(from),
		bytes: min(l.bytes, l.whole-from), sendStride: l.sendStride, recvStride: l.recvStride,
		exchange: at.Exchange, timeout: at.Timeout, report: at.Report,
	}
	if l.Bulk {
		return cuda.ParamsOf(&bulkArguments{a, at.SendAt, at.RecvAt})
	}
	return cuda.ParamsOf(&a)
}
