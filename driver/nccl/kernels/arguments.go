package kernels

import (
	"time"
	"unsafe"

	"symmem/internal/cuda"
)

// Places holds the addresses that kernels use, as mapped in this process.
type Places struct {
	// Exchange has the exchange memory of each rank.
	Exchange [MaxRanks]uintptr
	// SendAt and RecvAt have the buffers of all ranks, for bulk kernels.
	SendAt, RecvAt [MaxRanks]uintptr
	// Report is the address of the Report, and Timeout the time that kernels wait for peers.
	Report  uintptr
	Timeout time.Duration
}

// arguments holds the arguments of a kernel: struct Call of src/call.h.
type arguments struct {
	rank, ranks, sendTo, recvFrom, op, divisor uint32
	digest                                     uint64
	send, recv                                 uintptr
	bytes, sendStride, recvStride              int64
	exchange                                   [MaxRanks]uintptr
	timeout                                    time.Duration
	report                                     uintptr
}

// bulkArguments holds the arguments of a bulk kernel: struct Bulk of src/call.h.
type bulkArguments struct {
	arguments
	sendAt, recvAt [MaxRanks]uintptr
}

// WithDigest returns a copy of the result of Params with another digest.
func WithDigest(p cuda.Params, digest uint64) cuda.Params {
	return p.With(int(unsafe.Offsetof(arguments{}.digest)), digest)
}

// Params returns the arguments of the i-th piece of a call. They contain the call's digest, which
// kernels compare across ranks.
func (l *Launch) Params(at *Places, i int) cuda.Params {
	from := int64(i) * l.pieceBytes
	a := arguments{
		rank: uint32(l.Rank), ranks: uint32(l.Ranks), sendTo: l.sendTo, recvFrom: l.recvFrom,
		op: l.op, divisor: l.divisor, digest: l.Digest,
		send: l.Send + uintptr(from), recv: l.Recv + uintptr(from),
		bytes: min(l.pieceBytes, l.partBytes-from), sendStride: l.sendStride, recvStride: l.recvStride,
		exchange: at.Exchange, timeout: at.Timeout, report: at.Report,
	}
	if l.Bulk {
		return cuda.ParamsOf(&bulkArguments{a, at.SendAt, at.RecvAt})
	}
	return cuda.ParamsOf(&a)
}
