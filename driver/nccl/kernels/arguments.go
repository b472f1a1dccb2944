package kernels

import (
	"time"

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

// digestAt is where Params puts the digest: behind six words.
const digestAt = 24

// WithDigest returns a copy of what Params has made, for a call of another digest.
func WithDigest(p cuda.Params, digest uint64) cuda.Params { return p.With(digestAt, digest) }

// Params packs the arguments of a call as struct Call or Bulk of src/call.h, those of a call in
// pieces for one of them. The call has its digest: kernels fail where ranks differ in it.
func (l *Launch) Params(at *Places) cuda.Params {
	var p cuda.Params
	for _, word := range []uint32{
		uint32(l.Rank), uint32(l.Ranks), l.sendTo, l.recvFrom, l.op, l.divisor,
	} {
		p.Uint32(word)
	}
	p.Uint64(l.Digest)
	p.Address(l.Send + uintptr(l.from))
	p.Address(l.Recv + uintptr(l.from))
	for _, bytes := range []int64{l.bytes, l.sendStride, l.recvStride} {
		p.Uint64(uint64(bytes))
	}
	addresses(&p, &at.Exchange)
	p.Uint64(uint64(at.Timeout.Nanoseconds()))
	p.Address(at.Report)
	if l.Bulk {
		addresses(&p, &at.SendAt)
		addresses(&p, &at.RecvAt)
	}
	return p
}

func addresses(p *cuda.Params, all *[MaxRanks]uintptr) {
	for _, at := range all {
		p.Address(at)
	}
}
