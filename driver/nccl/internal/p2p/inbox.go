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

// inbox implements the receiving side: it matches announced messages with receives.
type inbox struct {
	config *driver.GroupConfig
	plane  control.Plane
	counts control.Messages
	device *Device
	ended  <-chan struct{} // closed when the group has failed or has been closed

	own  *mailbox // this rank's mailbox
	file *os.File // file of own while peers may still map it

	mu      ranked.Mutex[inboxMu]
	matcher message.Matcher[*End] // guarded by mu

	// The following fields are guarded by mu.

	// announced holds the messages that have not been matched with a Recv. expected holds the
	// receives that have been matched with a message whose header has not been read.
	announced map[address]*announcement
	expected  map[address]*End
	// unmatched lists announced messages that have not been passed to the matcher. anySource counts
	// the receives from any source (driver.AnySource) that have no message.
	unmatched    []*announcement
	anySource    int
	repeated     map[slotKey]*announcement // latest message in each slot of a graph
	peerSegments map[slotKey]*peerSegment
	pending      []*End // receives that have no message yet
	receives     []*End // receives that streams have not passed
	running      bool   // whether the delivering goroutine is running
	stopped      bool   // whether that goroutine must not be started again

	delivering sync.WaitGroup // goroutines that deliver messages or map segments
}

// newInbox creates this rank's mailbox and an inbox that reads it.
func newInbox(g *Group, counts control.Messages) (*inbox, error) {
	in := &inbox{
		config: g.Config, plane: g.Plane, counts: counts, device: g.Device, ended: g.Ended,
		announced: map[address]*announcement{}, expected: map[address]*End{},
		repeated: map[slotKey]*announcement{}, peerSegments: map[slotKey]*peerSegment{},
	}
	var err error
	in.own, in.file, err = openMailbox(g.Device, g.Config)
	return in, err
}

// readHeaders reads new headers. It returns an error if a header is invalid or does not match its
// Recv. The caller must hold in.mu.
func (in *inbox) readHeaders() (err error) {
	for source := range in.config.Ranks {
		if source == in.config.Rank || in.own == nil {
			continue
		}
		ring := in.own.ring(source)
		read := ring.read
		headers := spin.LoadAcquire64(&ring.posted) - read
		if headers > Slots {
			return fmt.Errorf("rank %d of the world has %d unread messages in group %s, but at most %d "+
				"are possible: the rank's memory is corrupt", in.config.Ranks[source], headers,
				in.config.Name(), Slots)
		}
		for range headers {
			read++
			a := &announcement{header: ring.headers[read%Slots], source: source}
			spin.StoreRelease64(&ring.read, read)
			if addErr := in.addAnnouncement(a); err == nil {
				err = addErr
			}
		}
	}
	if in.anySource > 0 && err == nil {
		err = in.passToMatcher(false)
	}
	return err
}

// addAnnouncement adds a message whose header has been read. The caller must hold in.mu.
func (in *inbox) addAnnouncement(a *announcement) error {
	if !a.valid() {
		return in.errInvalid(a)
	}
	if key := (slotKey{a.source, a.slot}); a.replayed != 0 {
		a.previous, in.repeated[key] = in.repeated[key], a
	}
	in.announced[a.address()] = a
	if e := in.expected[a.address()]; e != nil {
		delete(in.expected, a.address())
		return in.match(e)
	}
	if in.unmatched = append(in.unmatched, a); len(in.unmatched) > 2*len(in.announced)+Slots {
		in.unmatched = slices.DeleteFunc(in.unmatched, func(a *announcement) bool {
			return in.announced[a.address()] != a
		})
	}
	return nil
}

// passToMatcher passes complete messages to the matcher, in the order of their headers.
// Incomplete messages are held back unless all is set. The stream that sends such a message may
// itself be waiting for a Recv from any source, so that Recv must not be matched with the
// incomplete message. The caller must hold in.mu.
func (in *inbox) passToMatcher(all bool) error {
	unmatched := in.unmatched
	in.unmatched = nil
	var errs []error
	for _, a := range unmatched {
		if in.announced[a.address()] != a {
			continue // the message has been matched with a Recv
		}
		if !all && (!a.ownsFlags() || !in.isComplete(a)) {
			in.unmatched = append(in.unmatched, a)
			continue
		}
		errs = append(errs, in.assign(in.matcher.Arrive(message.Arrival{
			Source: a.source, Tag: int(a.tag), Number: a.number, Segment: in.matcherSegment(a.after),
		})))
	}
	return errors.Join(errs...)
}

// mayArrive reports whether an announced message may match a Recv from any source. The caller must
// hold in.mu.
func (in *inbox) mayArrive(e *End) bool {
	return slices.ContainsFunc(in.unmatched, func(a *announcement) bool {
		return int(a.tag) == e.plan.Tag && in.matcherSegment(a.after) == in.matcherSegment(e.After) &&
			in.announced[a.address()] == a
	})
}

func (in *inbox) errInvalid(a *announcement) error {
	return fmt.Errorf("rank %d of the world announced message %d with tag %d and %d bytes in group "+
		"%s, which is invalid: the rank's memory is corrupt", in.config.Ranks[a.source], a.number,
		a.tag, a.bytes, in.config.Name())
}

func (in *inbox) matcherSegment(after uint64) uint64 {
	return control.MessageSegment(in.config, after)
}

// assign stores claimed messages in the receives that have claimed them. The caller must hold
// in.mu.
func (in *inbox) assign(claims []message.Claim[*End]) error {
	var errs []error
	for _, claim := range slices.Clone(claims) {
		e := claim.Receive
		e.source, e.number, e.claimed = claim.Source, claim.Number, true
		if e.plan.Root == driver.AnySource {
			in.anySource--
		}
		errs = append(errs, in.match(e))
	}
	return errors.Join(errs...)
}

// match compares a Recv with the message that it has claimed. If the header of that message has
// not been read yet, match adds the Recv to expected. The caller must hold in.mu.
func (in *inbox) match(e *End) error {
	p := e.plan
	key := address{e.source, p.Tag, e.number}
	a := in.announced[key]
	if a == nil {
		in.expected[key] = e
		return nil
	}
	delete(in.announced, key)
	sent := control.MessageEnd{Digest: a.digest, After: a.after, Bytes: a.bytes}
	received := control.MessageEnd{Digest: p.Digest, After: e.After, Bytes: uint64(p.bytes())}
	err := control.CompareEnds(in.config, sent, received, p.Call, e.source, e.number, e.check)
	if err == nil {
		e.announced = a
	}
	return err
}

// post passes a Recv to the matcher. It returns accepted if the Recv has accepted its message
// immediately, and an error if the Send and the Recv of a message do not agree.
func (in *inbox) post(e *End) (accepted bool, err error) {
	p := e.plan
	in.mu.Lock()
	defer in.mu.Unlock()
	if p.Root == driver.AnySource {
		in.anySource++
	}
	err = errors.Join(in.readHeaders(),
		in.assign(in.matcher.Post(e, p.Tag, p.Root, in.matcherSegment(e.After))))
	if err == nil && !e.captured {
		accepted, err = in.accept(e)
	}
	if err == nil && !accepted {
		in.pending = append(in.pending, e)
	}
	return accepted, err
}

// expect adds a Recv to the unfinished receives before its wait is queued. From then on, the Recv
// can accept its message, or be refused when the group fails or closes. This must not require any
// later CUDA call: if another thread is in a CUDA call that waits for all streams, later calls
// may block until the Recv's wait is over.
func (in *inbox) expect(e *End) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.receives = append(in.receives, e)
	in.pruneReceives()
	in.deliver()
}

// unexpect removes a Recv that could not be queued completely. It also ends the wait of the Recv,
// which may already have been queued. It does not free the descriptor, because the device may still
// read it.
func (in *inbox) unexpect(e *End) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if !e.captured {
		e.refuse()
	}
	isRecv := func(other *End) bool { return other == e }
	in.receives = slices.DeleteFunc(in.receives, isRecv)
	in.pending = slices.DeleteFunc(in.pending, isRecv)
}

// pruneReceives removes the receives that streams have passed. The caller must hold in.mu.
func (in *inbox) pruneReceives() {
	in.receives = slices.DeleteFunc(in.receives, func(e *End) bool {
		passed := e.passed()
		if passed && !e.captured {
			in.device.Descriptors.Put(e.descriptor)
		}
		return passed
	})
}

// isWaiting reports whether a stream is waiting for the message of a Recv, or for the slot of a
// captured Send. The caller must hold in.mu.
func (in *inbox) isWaiting(e *End) bool {
	switch {
	case in.own == nil || !e.waits():
		return false
	case e.takenWord != nil:
		return atomic.LoadUint32(e.takenWord) == 0
	}
	return e.announced == nil || !in.isComplete(e.announced)
}

// unanswered reports whether any Recv is waiting for a message that has not been announced.
func (in *inbox) unanswered() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return slices.ContainsFunc(in.pending, func(e *End) bool { return e.announced == nil })
}

// stop stops the delivery of messages, and waits until the goroutines that deliver messages or
// map segments have returned.
func (in *inbox) stop() {
	in.mu.Lock()
	in.stopped = true
	if in.own != nil {
		in.own.wakeup().wake()
	}
	in.mu.Unlock()
	in.delivering.Wait()
}
