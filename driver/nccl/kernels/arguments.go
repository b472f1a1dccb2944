package kernels

import (
	"time"

	"symmem/internal/cuda"
)

// Arguments are what a launch needs besides what Choose found.
type Arguments struct {
	Rank, Ranks int
	// Digest stands for the call: kernels fail where ranks differ in it.
	Digest uint64
	// Send and Recv are this rank's buffers, SendAt and RecvAt those of all ranks as mapped
	// here, which bulk kernels need.
	Send, Recv     uintptr
	SendAt, RecvAt [MaxRanks]uintptr
	// Exchange is the exchange memory of each rank as mapped here.
	Exchange [MaxRanks]uintptr
	// Timeout bounds the wait for peers, Report is where a fault is told.
	Timeout time.Duration
	Report  uintptr
}

// digestAt is where Params puts the digest: behind six words.
const digestAt = 24

// WithDigest returns a copy of what Params has made, for a call of another digest.
func WithDigest(p cuda.Params, digest uint64) cuda.Params { return p.With(digestAt, digest) }

// Params packs the arguments as struct Call or Bulk of src/call.h, those of a call in pieces for
// one of them.
func (l *Launch) Params(a *Arguments) cuda.Params {
	var p cuda.Params
	for _, word := range []uint32{
		uint32(a.Rank), uint32(a.Ranks), l.sendTo, l.recvFrom, l.op, l.divisor,
	} {
		p.Uint32(word)
	}
	p.Uint64(a.Digest)
	p.Address(a.Send + uintptr(l.from))
	p.Address(a.Recv + uintptr(l.from))
	for _, bytes := range []int64{l.bytes, l.sendStride, l.recvStride} {
		p.Uint64(uint64(bytes))
	}
	addresses(&p, &a.Exchange)
	p.Uint64(uint64(a.Timeout.Nanoseconds()))
	p.Address(a.Report)
	if l.Bulk {
		addresses(&p, &a.SendAt)
		addresses(&p, &a.RecvAt)
	}
	return p
}

func addresses(p *cuda.Params, all *[MaxRanks]uintptr) {
	for _, at := range all {
		p.Address(at)
	}
}
