package host

import (
	"sync/atomic"
	"unsafe"

	"symmem/driver"
	"symmem/internal/control"
	"symmem/internal/spin"
)

var _ control.Messages = (*plane)(nil)

// shown is one end of a message, as the other rank can see it.
type shown struct{ digest, tag, after, _ uint64 }

// shownMessages is how many messages back are known, a power of two.
const shownMessages = 2048

// shownEnds are the ends of the latest messages of a pair, in the place of frames.
type shownEnds struct{ sent, received [shownMessages]shown }

var _ [pairFrames*unsafe.Sizeof(frame{}) - unsafe.Sizeof(shownEnds{})]struct{}

// endAt returns where an end of a message is shown, and the word that says up to which number.
func (p *pair) endAt(o driver.Operation, number uint64) (at *shown, latest *uint64) {
	ends := (*shownEnds)(unsafe.Pointer(&p.frames))
	if o == driver.Recv {
		return &ends.received[number%shownMessages], &p.taken
	}
	return &ends.sent[number%shownMessages], &p.posted
}

// mailboxOf finds the mailbox of a message, or nil after Close.
func (p *plane) mailboxOf(call *driver.Call) *pair {
	from, to := p.cfg.Rank, call.Root
	if call.Operation == driver.Recv {
		from, to = to, from
	}
	return pairIn(p.region.Base(), len(p.blocks), from, to)
}

// showing counts the messages to and from a peer whose ends this rank has shown.
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
	at, latest := p.mailboxOf(call).endAt(call.Operation, m.Number)
	spin.StoreRelease64(&at.digest, call.Digest)
	spin.StoreRelease64(&at.tag, uint64(call.Tag))
	spin.StoreRelease64(&at.after, m.After)
	// With a fence, so that of two ranks which show theirs and then look, one sees the other's.
	atomic.StoreUint64(latest, m.Number)
	return m
}

// other is the operation of the other end of a message.
func other(o driver.Operation) driver.Operation {
	if o == driver.Send {
		return driver.Recv
	}
	return driver.Send
}

// Answered reports whether the peer has shown its end.
func (p *plane) Answered(call *driver.Call, number uint64) bool {
	if p.enter() != nil {
		return false
	}
	defer p.leave()
	_, latest := p.mailboxOf(call).endAt(other(call.Operation), number)
	return spin.LoadAcquire64(latest) >= number
}

// Theirs returns what the peer has shown of its end of a message.
func (p *plane) Theirs(call *driver.Call, number uint64) (theirs control.End, known bool) {
	if p.enter() != nil {
		return theirs, false
	}
	defer p.leave()
	at, latest := p.mailboxOf(call).endAt(other(call.Operation), number)
	if spin.LoadAcquire64(latest) < number {
		return theirs, false
	}
	theirs = control.End{
		Digest: spin.LoadAcquire64(&at.digest), Tag: spin.LoadAcquire64(&at.tag),
		After: spin.LoadAcquire64(&at.after),
	}
	return theirs, spin.LoadAcquire64(latest) < number+shownMessages
}

// Lost reports whether the process of a rank has ended.
func (p *plane) Lost(peer int) bool {
	return p.peers[peer] != nil && p.peers[peer].lost.Load()
}
