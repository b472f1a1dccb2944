package p2p

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"symmem/driver"
	"symmem/internal/control"
	"symmem/internal/message"
	"symmem/internal/ranked"
	"symmem/internal/spin"
)

// inbox has the messages that peers have announced to this rank, and the receives that wait.
type inbox struct {
	*Group
	own  *mailbox
	file *os.File // of own, until the peers have mapped it or the group could not be made

	mu      ranked.Mutex[inboxMu]
	matcher message.Matcher[*End] // guarded by mu
	// announced are the messages whose header has come and that no Recv has; expected are receives
	// whose message is known, and whose header has not come. Both are guarded by mu.
	announced map[address]*announcement
	expected  map[address]*End
	// unmatched are those that no Recv had when their header came, and that the matcher does not know
	// yet; anywhere is how many receives from any source have none. Both are guarded by mu.
	unmatched    []*announcement
	anywhere     int
	repeated     map[slotKey]*announcement // the latest message of a slot of a graph; guarded by mu
	peerSegments map[slotKey]*peerSegment  // segments of peers; guarded by mu
	open         []*End                    // receives that have no message yet; guarded by mu
	// receives are those that their streams have not come past; guarded by mu.
	receives []*End
	running  bool // a goroutine delivers; guarded by mu
	stopped  bool // none will any more; guarded by mu

	delivering sync.WaitGroup
}

// readHeaders reads the headers that have come. It returns an error if one does not fit its Recv.
// in.mu is held.
func (in *inbox) readHeaders() (err error) {
	for source := range in.Config.Ranks {
		if source == in.Config.Rank || in.own == nil {
			continue
		}
		b := in.own.ring(source)
		read := b.read
		headers := spin.LoadAcquire64(&b.posted) - read
		if headers > Slots {
			return fmt.Errorf("rank %d of the world announces %d messages at once in group %s, which "+
				"no rank of symmem does", in.Config.Ranks[source], headers, in.Config.Name())
		}
		for range headers {
			read++
			l := &announcement{header: b.headers[read%Slots], source: source}
			spin.StoreRelease64(&b.read, read)
			if failed := in.addAnnouncement(l); err == nil {
				err = failed
			}
		}
	}
	if in.anywhere > 0 && err == nil {
		err = in.arrive(false)
	}
	return err
}

// addAnnouncement adds a message whose header has come. in.mu is held.
func (in *inbox) addAnnouncement(l *announcement) error {
	if !l.valid() {
		return in.errInvalid(l)
	}
	if at := (slotKey{l.source, l.slot}); l.replayed != 0 {
		l.before, in.repeated[at] = in.repeated[at], l
	}
	in.announced[l.address()] = l
	if e := in.expected[l.address()]; e != nil {
		delete(in.expected, l.address())
		return in.match(e)
	}
	if in.unmatched = append(in.unmatched, l); len(in.unmatched) > 2*len(in.announced)+Slots {
		in.unmatched = slices.DeleteFunc(in.unmatched, func(l *announcement) bool {
			return in.announced[l.address()] != l
		})
	}
	return nil
}

// arrive passes to the matcher the messages that are there, in the order in which this rank knows
// them, or, with all, announced ones that have yet to arrive, too. Receives from any source take a
// message that is there: another one may never arrive before they have one. in.mu is held.
func (in *inbox) arrive(all bool) error {
	unmatched := in.unmatched
	in.unmatched = nil
	var errs []error
	for _, l := range unmatched {
		if in.announced[l.address()] != l {
			continue // a Recv has it
		}
		if !all && (!l.next() || !in.isComplete(l)) {
			in.unmatched = append(in.unmatched, l)
			continue
		}
		errs = append(errs, in.hand(in.matcher.Arrive(message.Arrival{
			Source: l.source, Tag: int(l.tag), Number: l.number, Segment: in.part(l.after),
		})))
	}
	return errors.Join(errs...)
}

// mayArrive reports whether the header of a message has come that a Recv from any source may get.
// in.mu is held.
func (in *inbox) mayArrive(e *End) bool {
	return slices.ContainsFunc(in.unmatched, func(l *announcement) bool {
		return int(l.tag) == e.plan.Tag && in.part(l.after) == in.part(e.After) &&
			in.announced[l.address()] == l
	})
}

// errInvalid returns the error about a message that no correct peer announces.
func (in *inbox) errInvalid(l *announcement) error {
	return fmt.Errorf("rank %d of the world tells of message %d with tag %d of %d bytes in group "+
		"%s, which cannot be", in.Config.Ranks[l.source], l.number, l.tag, l.bytes, in.Config.Name())
}

// part returns the matcher's segment of a message that was called after a number of collectives.
func (in *inbox) part(after uint64) uint64 { return control.MessageSegment(in.Config, after) }

// hand passes claimed messages to their receives. in.mu is held.
func (in *inbox) hand(claims []message.Claim[*End]) error {
	var errs []error
	for _, claim := range slices.Clone(claims) {
		e := claim.Receive
		e.source, e.number, e.claimed = claim.Source, claim.Number, true
		if e.plan.Root == driver.AnySource {
			in.anywhere--
		}
		errs = append(errs, in.match(e))
	}
	return errors.Join(errs...)
}

// match gives a Recv what it knows its message, if it was, and compares the two ends. in.mu
// is held.
func (in *inbox) match(e *End) error {
	p := e.plan
	at := address{e.source, p.Tag, e.number}
	l := in.announced[at]
	if l == nil {
		in.expected[at] = e
		return nil
	}
	delete(in.announced, at)
	sent := control.End{Digest: l.digest, After: l.after, Bytes: l.bytes}
	received := control.End{Digest: p.Digest, After: e.After, Bytes: uint64(p.bytes())}
	err := control.Differ(in.Config, sent, received, p.Call, e.source, e.number, e.check)
	if err == nil {
		e.announced = l
	}
	return err
}

// post puts a Recv in its slot among those of its tag, and reports whether it is given its message
// now. It returns an error if two ends differ.
func (in *inbox) post(e *End) (now bool, err error) {
	p := e.plan
	in.mu.Lock()
	defer in.mu.Unlock()
	if p.Root == driver.AnySource {
		in.anywhere++
	}
	err = errors.Join(
		in.readHeaders(), // so that messages that were announced count
		in.hand(in.matcher.Post(e, p.Tag, p.Root, in.part(e.After))))
	if err == nil && !e.captured {
		now, err = in.take(e)
	}
	if err == nil && !now {
		in.open = append(in.open, e)
	}
	return now, err
}

// expect notes a Recv before its wait is queued: from then on it is given its message, and is
// released when the group ends. A call to CUDA behind such a wait may not return before the
// wait has ended: some other thread may be in one that waits for all streams.
func (in *inbox) expect(e *End) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.receives = append(in.receives, e)
	in.pruneReceives()
	in.deliver()
}

// unexpect forgets a Recv that could not be queued, or not wholly: a wait that is there ends. The
// descriptor stays, since the device may look at it.
func (in *inbox) unexpect(e *End) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if !e.captured {
		e.refuse()
	}
	same := func(other *End) bool { return other == e }
	in.receives = slices.DeleteFunc(in.receives, same)
	in.open = slices.DeleteFunc(in.open, same)
}

// pruneReceives forgets those that streams have come past. in.mu is held.
func (in *inbox) pruneReceives() {
	in.receives = slices.DeleteFunc(in.receives, func(e *End) bool {
		over := e.over()
		if over && !e.captured {
			in.Device.Descriptors.Put(e.descriptor)
		}
		return over
	})
}

// isWaiting reports whether a stream waits for a message that is not there, or, for a Send of a
// graph, for its slot. in.mu is held.
func (in *inbox) isWaiting(e *End) bool {
	switch {
	case in.own == nil || !e.waits():
		return false
	case e.takenWord != nil:
		return atomic.LoadUint32(e.takenWord) == 0
	}
	return e.announced == nil || !in.isComplete(e.announced)
}

// Unanswered reports whether a Recv waits for a message whose header has not come.
func (in *inbox) Unanswered() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return slices.ContainsFunc(in.open, func(e *End) bool { return e.announced == nil })
}
