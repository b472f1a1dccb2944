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

// inbox matches announced messages with Recvs. A sender announces a message by a header in this
// rank's mailbox (shared host memory), and the data can arrive later. The caller of a method must
// hold mu, unless the method locks mu or states otherwise.
type inbox struct {
	config       *driver.GroupConfig
	plane        control.Plane
	messagePlane control.Messages
	device       *Device
	ended        <-chan struct{} // see Group.Ended

	mailbox *mailbox // this rank's mailbox; nil after it has been freed
	file    *os.File // the mailbox's file, while peers may still map it

	mu             ranked.Mutex[inboxMu]        // guards the following fields
	matcher        message.Matcher[*End]        // assigns messages to Recvs, in order
	announcements  map[messageKey]*announcement // messages without a Recv
	awaitingHeader map[messageKey]*End          // Recvs without their message's header
	// unassigned holds messages that have not been passed to the matcher, in the order of their
	// headers. Some may have a Recv meanwhile. The matcher needs messages only for Recvs from any
	// source: if the source is given, it knows the number of the next message.
	unassigned          []*announcement
	anySourceRecvs      int                         // Recvs from any source without a message
	lastInSlot          map[slotKey]*announcement   // latest message in a slot of a graph
	peerSegments        map[segmentKey]*peerSegment // peers' memory that holds messages
	recvsWithoutMessage []*End                      // Recvs that have not accepted a message
	unfinishedRecvs     []*End                      // Recvs not known to be complete
	isDelivering        bool                        // deliverMessages is running
	stopped             bool                        // delivery must not start again

	goroutines sync.WaitGroup // goroutines that deliver messages or map segments
}

func newInbox(g *Group, messagePlane control.Messages) (*inbox, error) {
	in := &inbox{
		config: g.Config, plane: g.Plane, messagePlane: messagePlane,
		device: g.Device, ended: g.Ended,
		announcements: map[messageKey]*announcement{}, awaitingHeader: map[messageKey]*End{},
		lastInSlot: map[slotKey]*announcement{}, peerSegments: map[segmentKey]*peerSegment{},
	}
	var err error
	in.mailbox, in.file, err = openMailbox(g.Device, g.Config)
	return in, err
}

// readHeaders reads the new headers in the mailbox and adds their messages. After an invalid
// header, it reads the rest, too, and returns the first error.
func (in *inbox) readHeaders() (err error) {
	for source := range in.config.Ranks {
		if source == in.config.Rank || in.mailbox == nil {
			continue
		}

		ring := in.mailbox.headersFrom(source)
		readCount := ring.readCount
		unreadCount := spin.LoadAcquire64(&ring.postedCount) - readCount
		if unreadCount > Slots {
			return fmt.Errorf("rank %d of the world has %d unread messages in group %s, but at most %d "+
				"are possible: the rank's memory is corrupt", in.config.Ranks[source], unreadCount,
				in.config.Name(), Slots)
		}

		for range unreadCount {
			readCount++
			a := &announcement{header: ring.headers[readCount%Slots], source: source}
			spin.StoreRelease64(&ring.readCount, readCount)
			if addErr := in.addAnnouncement(a); err == nil {
				err = addErr
			}
		}
	}

	if err != nil || in.anySourceRecvs == 0 {
		return err
	}

	const all = false
	return in.passToMatcher(all)
}

// addAnnouncement adds a message, and compares it with its Recv if there is one.
func (in *inbox) addAnnouncement(a *announcement) error {
	if !a.isValid() {
		return in.invalidError(a)
	}

	if a.inGraph != 0 {
		key := slotKey{source: a.source, slot: a.slot}
		a.previousInSlot = in.lastInSlot[key]
		in.lastInSlot[key] = a
	}

	in.announcements[a.key()] = a
	if e := in.awaitingHeader[a.key()]; e != nil {
		delete(in.awaitingHeader, a.key())
		return in.match(e)
	}

	in.unassigned = append(in.unassigned, a)
	mustPrune := len(in.unassigned) > 2*len(in.announcements)+Slots // most have a Recv
	if mustPrune {
		in.unassigned = slices.DeleteFunc(in.unassigned, func(a *announcement) bool {
			return in.announcements[a.key()] != a
		})
	}

	return nil
}

// passToMatcher passes messages to the matcher in the order of their headers. Unless all is set,
// it skips incomplete messages, because the streams of their Sends may be blocked. A Recv from any
// source must not wait for them.
func (in *inbox) passToMatcher(all bool) error {
	unmatched := in.unassigned
	in.unassigned = nil
	var errs []error
	for _, a := range unmatched {
		if in.announcements[a.key()] != a {
			continue // matched with a Recv
		}

		canClaim := a.ownsFlags() && in.canClaim(a)
		if !all && !canClaim {
			in.unassigned = append(in.unassigned, a)
			continue
		}

		claims := in.matcher.Arrive(message.Arrival{
			Source: a.source, Tag: int(a.tag), Number: a.number,
			Segment: in.matcherSegment(a.collectivesBefore),
		})
		err := in.assign(claims)
		errs = append(errs, err)
	}

	return errors.Join(errs...)
}

// hasCandidate reports whether a message without a Recv may be assigned to the Recv e later. A Recv
// that names its source has to wait for this, too, after a Recv from any source with the same tag.
func (in *inbox) hasCandidate(e *End) bool {
	p := e.plan
	return slices.ContainsFunc(in.unassigned, func(a *announcement) bool {
		isFromSource := p.Root == driver.AnySource || p.Root == a.source
		return isFromSource && int(a.tag) == p.Tag && in.announcements[a.key()] == a &&
			in.matcherSegment(a.collectivesBefore) == in.matcherSegment(e.After)
	})
}

// invalidError returns the error for a header that a correct peer could not have written.
func (in *inbox) invalidError(a *announcement) error {
	return fmt.Errorf("rank %d of the world announced message %d with tag %d and %d bytes in group "+
		"%s, which is invalid: the rank's memory is corrupt", in.config.Ranks[a.source], a.number,
		a.tag, a.bytes, in.config.Name())
}

// matcherSegment returns the segment of a Send or Recv. after is the number of collectives before
// it. The matcher does not assign a message to a Recv from any source in another segment.
func (in *inbox) matcherSegment(after uint64) uint64 {
	return control.MessageSegment(in.config, after)
}

// assign informs Recvs of the messages that the matcher has assigned to them, and compares them.
func (in *inbox) assign(claims []message.Claim[*End]) error {
	var errs []error
	for _, claim := range slices.Clone(claims) {
		e := claim.Receive
		e.source = claim.Source
		e.sentNumber = claim.Number
		e.isAssigned = true
		if e.plan.Root == driver.AnySource {
			in.anySourceRecvs--
		}

		err := in.match(e)
		errs = append(errs, err)
	}

	return errors.Join(errs...)
}

// match compares a Recv with its message, but does nothing until the message's header has been
// read.
func (in *inbox) match(e *End) error {
	p := e.plan
	key := messageKey{source: e.source, tag: p.Tag, number: e.sentNumber}
	a := in.announcements[key]
	if a == nil {
		in.awaitingHeader[key] = e
		return nil
	}

	delete(in.announcements, key)
	sent := control.MessageEnd{Digest: a.digest, After: a.collectivesBefore, Bytes: a.bytes}
	received := control.MessageEnd{Digest: p.Digest, After: e.After, Bytes: uint64(p.bytes())}
	err := control.CompareEnds(in.config, sent, received, p.Call, e.source, e.sentNumber, e.isCompared)
	if err == nil {
		e.announcement = a
	}

	return err
}

// post passes a Recv to the matcher. If the message has already arrived, the Recv accepts it, and
// post returns true. A captured Recv does not accept its message here.
func (in *inbox) post(e *End) (accepted bool, err error) {
	p := e.plan
	in.mu.Lock()
	defer in.mu.Unlock()
	if p.Root == driver.AnySource {
		in.anySourceRecvs++
	}

	readErr := in.readHeaders()
	claims := in.matcher.Post(e, p.Tag, p.Root, in.matcherSegment(e.After))
	assignErr := in.assign(claims)
	if readErr != nil || assignErr != nil {
		return false, errors.Join(readErr, assignErr)
	}

	if !e.isCaptured {
		accepted, err = in.accept(e)
	}

	if err == nil && !accepted {
		in.recvsWithoutMessage = append(in.recvsWithoutMessage, e)
	}

	return accepted, err
}

// addReceive starts the delivery of a Recv's message. Call it before the Recv's wait is queued.
// Later, it could be too late: if another thread is in a CUDA call that waits for all streams, CUDA
// calls of this thread may block until the Recv's wait is over.
func (in *inbox) addReceive(e *End) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.unfinishedRecvs = append(in.unfinishedRecvs, e)
	in.pruneReceives()
	in.startDelivery()
}

// removeReceive removes a Recv that could not be queued completely, and ends its wait. The
// descriptor is leaked, because the device may still read it.
func (in *inbox) removeReceive(e *End) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if !e.isCaptured { // no launch of a captured Recv waits yet
		e.refuse()
	}

	isE := func(other *End) bool { return other == e }
	in.unfinishedRecvs = slices.DeleteFunc(in.unfinishedRecvs, isE)
	in.recvsWithoutMessage = slices.DeleteFunc(in.recvsWithoutMessage, isE)
}

// pruneReceives forgets complete Recvs and frees their descriptors.
func (in *inbox) pruneReceives() {
	in.unfinishedRecvs = slices.DeleteFunc(in.unfinishedRecvs, func(e *End) bool {
		isComplete := e.isComplete()
		if isComplete && !e.isCaptured {
			in.device.Descriptors.Put(e.descriptor)
		}

		return isComplete
	})
}

// checkWait reports whether a stream waits for a Recv's message or a captured Send's slot, and sets
// e.waitStart.
func (in *inbox) checkWait(e *End) (isWaiting bool) {
	if in.mailbox == nil || !e.checkWait() {
		return false
	}

	if e.isCapturedSend() {
		return atomic.LoadUint32(e.copiedFlag) == 0
	}

	return e.announcement == nil || !in.canClaim(e.announcement)
}

// hasUnanswered reports whether any Recv is waiting for a message that has not been announced.
func (in *inbox) hasUnanswered() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return slices.ContainsFunc(in.recvsWithoutMessage, func(e *End) bool {
		return e.announcement == nil
	})
}

// stop ends the delivery and waits for its goroutines.
func (in *inbox) stop() {
	in.mu.Lock()
	in.stopped = true
	if in.mailbox != nil {
		in.mailbox.wakeup().wake()
	}

	in.mu.Unlock()
	in.goroutines.Wait()
}
