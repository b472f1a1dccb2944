package host

import (
	"sync/atomic"
	"unsafe"

	"symmem/driver"
	"symmem/internal/control"
	"symmem/internal/spin"
)

var _ control.Messages = (*plane)(nil)

// digestRing is how many digests of messages a mailbox holds, in the place of data.
const digestRing = pairBytes / 8

// digestAt returns where the sender shows the digest of a message.
func (p *pair) digestAt(number uint64) *uint64 {
	return (*uint64)(unsafe.Pointer(&p.data[number%digestRing*8]))
}

// mailboxOf finds the mailbox of a message, or nil after Close.
func (p *plane) mailboxOf(call *driver.Call) *pair {
	from, to := p.cfg.Rank, call.Root
	if call.Operation == driver.Recv {
		from, to = to, from
	}
	return pairIn(p.region.Base(), len(p.blocks), from, to)
}

// Offer shows this rank's end of the next message.
func (p *plane) Offer(call *driver.Call) (number uint64) {
	ends := &p.pairs[call.Root]
	if call.Operation == driver.Send {
		number = atomic.AddUint64(&ends.sends.chunk, 1)
	} else {
		number = atomic.AddUint64(&ends.receives.chunk, 1)
	}
	if p.enter() != nil {
		return number
	}
	defer p.leave()
	box := p.mailboxOf(call)
	if call.Operation == driver.Recv {
		spin.StoreRelease64(&box.taken, number)
		return number
	}
	spin.StoreRelease64(box.digestAt(number), call.Digest)
	spin.StoreRelease64(&box.posted, number)
	return number
}

// Answered tells whether the peer has shown its end.
func (p *plane) Answered(call *driver.Call, number uint64) bool {
	if p.enter() != nil {
		return false
	}
	defer p.leave()
	box := p.mailboxOf(call)
	if call.Operation == driver.Recv {
		return spin.LoadAcquire64(&box.posted) >= number
	}
	return spin.LoadAcquire64(&box.taken) >= number
}

// Differs compares the sender's digest with the receiver's.
func (p *plane) Differs(call *driver.Call, number uint64) bool {
	if call.Operation != driver.Recv || p.enter() != nil {
		return false
	}
	defer p.leave()
	box := p.mailboxOf(call)
	digest := spin.LoadAcquire64(box.digestAt(number))
	posted := spin.LoadAcquire64(&box.posted)
	return number <= posted && posted < number+digestRing && digest != call.Digest
}

// Lost tells whether the process of a rank has ended.
func (p *plane) Lost(peer int) bool {
	return p.peers[peer] != nil && p.peers[peer].lost.Load()
}
