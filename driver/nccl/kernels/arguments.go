package kernels

import (
	"time"
	"unsafe"

	"symmem/internal/cuda"
)

// arguments has the layout of struct Call in src/call.h.
type arguments struct {
	rank, ranks, sendTo, recvFrom, op, divisor uint32
	digest                                     uint64
	send, recv                                 uintptr
	bytes, sendStride, recvStride              int64
	exchange                                   [MaxRanks]uintptr
	timeout                                    time.Duration
	report                                     uintptr
}

// bulkArguments has the layout of struct Bulk in src/call.h.
type bulkArguments struct {
	arguments
	sendAt, recvAt [MaxRanks]uintptr
}

// Steps implements Work. All pieces of a call have the digest of the whole call.
func (l *Launch) Steps(t *Transport) (steps []Step) {
	for i := range l.PieceCount {
		steps = append(steps, Step{
			Kernel: l.Kernel, Blocks: l.Blocks, Threads: l.Threads, Params: l.params(t, i),
			CanOverlap: t.CanOverlap && l.canOverlap(), digestOffset: unsafe.Offsetof(arguments{}.digest),
		})
	}

	if l.Norm != nil && !l.Fused {
		steps = append(steps, newLocalStep(l, t))
	}

	return steps
}

func (l *Launch) params(t *Transport, i int) cuda.Params {
	switch {
	case l.Fused && l.Bulk:
		return bulkNormParams(l, t)
	case l.Fused:
		return normParams(l, t)
	}

	a := l.arguments(t, i)
	if !l.Bulk {
		return cuda.ParamsOf(&a)
	}

	bulk := bulkArguments{arguments: a}
	copy(bulk.sendAt[:], l.SendWindow.(PeerLocator).Locate(l.Send))
	if l.RecvWindow != nil { // otherwise, the kernel writes only to this rank's output
		copy(bulk.recvAt[:], l.RecvWindow.(PeerLocator).Locate(l.Recv))
	}

	return cuda.ParamsOf(&bulk)
}

func (l *Launch) arguments(t *Transport, i int) arguments {
	offset := int64(i) * l.pieceBytes
	a := arguments{
		rank: uint32(l.Rank), ranks: uint32(l.Ranks), sendTo: l.sendRanks, recvFrom: l.recvRanks,
		op: l.reduction, divisor: l.divisor, digest: l.Digest,
		send: l.Send + uintptr(offset), recv: l.Recv + uintptr(offset),
		bytes: min(l.pieceBytes, l.partBytes-offset), sendStride: l.sendStride, recvStride: l.recvStride,
		timeout: t.Timeout, report: t.Report,
	}
	copy(a.exchange[:], t.Exchange)
	return a
}
