package host

import (
	"sync/atomic"
	"unsafe"

	"symmem/driver"
	"symmem/internal/control"
	"symmem/internal/spin"
)

var _ control.Messages = (*plane)(nil)

// shown is the sender's end of a message, as the receiver can see it.
type shown struct{ digest, tag, after, _ uint64 }

// shownMessages is how many messages back are known, a power of two.
const shownMessages = 2048

var _ [pairFrames*unsafe.Sizeof(frame{}) - shownMessages*unsafe.Sizeof(shown{})]struct{}

// shownAt returns where the sender shows its end of a message, in the place of frames.
func (p *pair) shownAt(number uint64) *shown {
	ring := (*[shownMessages]shown)(unsafe.Pointer(&p.frames))
	return &ring[number%shownMessages]
}

// mailboxOf finds the mailbox of a message, or nil after Close.
func (p *plane) mailboxOf(call *driver.Call) *pair {
	from, to := p.cfg.Rank, call.Root
	if call.Operation == driver.Recv {
		from, to = to, from
	}
	return pairIn(p.region.Base(), len(p.blocks), from, to)
}

// showing counts the messages that were shown to a peer, and to how many receives of this rank's it
// has been told.
type showing struct{ sends, receives uint64 }

// Offer shows this rank's end of the next message.
func (p *plane) Offer(call *driver.Call) control.Message {
	m := control.Message{After: spin.LoadAcquire64(&p.submitted)}
	ends := &p.showings[call.Root]
	if call.Operation == driver.Send {
		m.Number = atomic.AddUint64(&ends.sends, 1)
	} else {
		m.Number = atomic.AddUint64(&ends.receives, 1)
	}
	if p.enter() != nil {
		return m
	}
	defer p.leave()
	box := p.mailboxOf(call)
	if call.Operation == driver.Recv {
		spin.StoreRelease64(&box.taken, m.Number)
		return m
	}
	s := box.shownAt(m.Number)
	spin.StoreRelease64(&s.digest, call.Digest)
	spin.StoreRelease64(&s.tag, uint64(call.Tag))
	spin.StoreRelease64(&s.after, m.After)
	spin.StoreRelease64(&box.posted, m.Number)
	return m
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

// Theirs returns what the sender has shown of a message that this rank receives.
func (p *plane) Theirs(call *driver.Call, number uint64) (theirs control.Sent, known bool) {
	if call.Operation != driver.Recv || p.enter() != nil {
		return theirs, false
	}
	defer p.leave()
	box := p.mailboxOf(call)
	s := box.shownAt(number)
	theirs = control.Sent{
		Digest: spin.LoadAcquire64(&s.digest), Tag: spin.LoadAcquire64(&s.tag),
		After: spin.LoadAcquire64(&s.after),
	}
	posted := spin.LoadAcquire64(&box.posted)
	return theirs, number <= posted && posted < number+shownMessages
}

// Lost tells whether the process of a rank has ended.
func (p *plane) Lost(peer int) bool {
	return p.peers[peer] != nil && p.peers[peer].lost.Load()
}
