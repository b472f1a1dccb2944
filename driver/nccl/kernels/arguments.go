package kernels

import (
	"time"
	"unsafe"

	"symmem/internal/cuda"
)

// Places holds the addresses that kernels use and their timeout. The addresses are those in this
// process.
type Places struct {
	// Exchange holds the address of each rank's exchange memory.
	Exchange [MaxRanks]uintptr
	// SendAt and RecvAt hold the addresses of all ranks' buffers, for bulk kernels.
	SendAt, RecvAt [MaxRanks]uintptr
	// Report is the address of the Report.
	Report uintptr
	// Timeout is the time that kernels wait for peers.
	Timeout time.Duration
}

// arguments holds the arguments of a kernel, in the layout of struct Call in src/call.h.
type arguments struct {
	rank, ranks, sendTo, recvFrom, op, divisor uint32
	digest                                     uint64
	send, recv                                 uintptr
	bytes, sendStride, recvStride              int64
	exchange                                   [MaxRanks]uintptr
	timeout                                    time.Duration
	report                                     uintptr
}

// bulkArguments holds the arguments of a bulk kernel, in the layout of struct Bulk in src/call.h.
type bulkArguments struct {
	arguments
	sendAt, recvAt [MaxRanks]uintptr
}

// WithDigest returns a copy of arguments from Params with another digest.
func WithDigest(p cuda.Params, digest uint64) cuda.Params {
	return p.With(int(unsafe.Offsetof(arguments{}.digest)), digest)
}

// Params returns the arguments for piece i of the call. The arguments contain the call's digest,
// which kernels compare across ranks.
func (l *Launch) Params(at *Places, i int) cuda.Params {
	offset := int64(i) * l.pieceBytes
	a := arguments{
		rank: uint32(l.Rank), ranks: uint32(l.Ranks), sendTo: l.sendTo, recvFrom: l.recvFrom,
		op: l.op, divisor: l.divisor, digest: l.Digest,
		send: l.Send + uintptr(offset), recv: l.Recv + uintptr(offset),
		bytes: min(l.pieceBytes, l.partBytes-offset), sendStride: l.sendStride, recvStride: l.recvStride,
		exchange: at.Exchange, timeout: at.Timeout, report: at.Report,
	}
	if l.Bulk {
		return cuda.ParamsOf(&bulkArguments{a, at.SendAt, at.RecvAt})
	}
	return cuda.ParamsOf(&a)
}
