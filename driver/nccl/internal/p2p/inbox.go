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

// inbox is what this rank was told of, and what receives it.
type inbox struct {
	*Group
	own  *mailbox
	file *os.File // of own, until the peers have mapped it or the group could not be made

	mu      ranked.Mutex[inboxMu]
	matcher message.Matcher[*End] // guarded by mu
	// letters are the messages that were told of and that no Recv has, expected the claimed ones
	// that were not told of; both guarded by mu.
	letters  map[address]*letter
	expected map[address]*End
	// told are those that no Recv had when this rank was told of them, and that the matcher does
	// not know; anywhere is how many receives from any source have none. Both guarded by mu.
	told     []*letter
	anywhere int
	repeated map[spot]*letter     // the latest message of a place that a graph uses; guarded by mu
	lent     map[spot]*lentMemory // segments of peers; guarded by mu
	open     []*End               // receives that have not been given a message; guarded by mu
	// receives are those that their streams have not come past; guarded by mu.
	receives []*End
	running  bool // a goroutine delivers; guarded by mu
	stopped  bool // none will any more; guarded by mu

	delivering sync.WaitGroup
}

// readMail takes notice of all messages that this rank was told of. It returns an error if one does
// not fit to its Recv. in.mu is held.
func (in *inbox) readMail() (err error) {
	for source := range in.Config.Ranks {
		if source == in.Config.Rank || in.own == nil {
			continue
		}
		b := in.own.box(source)
		read := b.read
		told := spin.LoadAcquire64(&b.posted) - read
		if told > Places {
			return fmt.Errorf("rank %d of the world tells of %d messages at once in group %s, which "+
				"cannot be", in.Config.Ranks[source], told, in.Config.Name())
		}
		for range told {
			read++
			l := &letter{header: b.headers[read%Places], source: source}
			spin.StoreRelease64(&b.read, read)
			if failed := in.takeLetter(l); err == nil {
				err = failed
			}
		}
	}
	if in.anywhere > 0 && err == nil {
		err = in.arrive(false)
	}
	return err
}

// takeLetter takes notice of a message. in.mu is held.
func (in *inbox) takeLetter(l *letter) error {
	if !l.possible() {
		return in.errImpossible(l)
	}
	if at := (spot{l.source, l.place}); l.again != 0 {
		l.before, in.repeated[at] = in.repeated[at], l
	}
	in.letters[l.address()] = l
	if e := in.expected[l.address()]; e != nil {
		delete(in.expected, l.address())
		return in.match(e)
	}
	if in.told = append(in.told, l); len(in.told) > 2*len(in.letters)+Places {
		in.told = slices.DeleteFunc(in.told, func(l *letter) bool {
			return in.letters[l.address()] != l
		})
	}
	return nil
}

// arrive tells the matcher of the messages that are there by now, in the order in which this rank
// was told of them, or, with all, of those that have yet to come, too. Receives from any source
// take what is there: a message that is not may never come before they have another one. in.mu is
// held.
func (in *inbox) arrive(all bool) error {
	told := in.told
	in.told = nil
	var errs []error
	for _, l := range told {
		if in.letters[l.address()] != l {
			continue // a Recv has it
		}
		if !all && (!l.next() || !in.there(l)) {
			in.told = append(in.told, l)
			continue
		}
		errs = append(errs, in.hand(in.matcher.Arrive(message.Arrival{
			Source: l.source, Tag: int(l.tag), Number: l.number, Segment: in.part(l.after),
		})))
	}
	return errors.Join(errs...)
}

// mayArrive reports whether this rank was told of a message that a Recv from any source may get.
// in.mu is held.
func (in *inbox) mayArrive(e *End) bool {
	return slices.ContainsFunc(in.told, func(l *letter) bool {
		return int(l.tag) == e.call.Tag && in.part(l.after) == in.part(e.After) &&
			in.letters[l.address()] == l
	})
}

// errImpossible is about a message that no peer that is in order tells of.
func (in *inbox) errImpossible(l *letter) error {
	return fmt.Errorf("rank %d of the world tells of message %d with tag %d of %d bytes in group "+
		"%s, which cannot be", in.Config.Ranks[l.source], l.number, l.tag, l.bytes, in.Config.Name())
}

// part is what the matcher knows of a message that was called behind so many collectives.
func (in *inbox) part(after uint64) uint64 {
	if !in.Config.Strict {
		return 0
	}
	return after
}

// hand tells receives which messages are theirs. in.mu is held.
func (in *inbox) hand(claims []message.Claim[*End]) error {
	var errs []error
	for _, claim := range slices.Clone(claims) {
		e := claim.Receive
		e.source, e.number, e.claimed = claim.Source, claim.Number, true
		if e.call.Root == driver.AnySource {
			in.anywhere--
		}
		errs = append(errs, in.match(e))
	}
	return errors.Join(errs...)
}

// match gives a Recv what it was told of its message, if it was, and compares the two ends. in.mu
// is held.
func (in *inbox) match(e *End) error {
	p := e.call
	at := address{e.source, p.Tag, e.number}
	l := in.letters[at]
	if l == nil {
		in.expected[at] = e
		return nil
	}
	delete(in.letters, at)
	sent := control.End{Digest: l.digest, After: l.after, Bytes: l.bytes}
	received := control.End{Digest: p.Digest, After: e.After, Bytes: uint64(p.bytes())}
	err := control.Differ(in.Config, sent, received, p.Call, e.source, e.number, e.check)
	if err == nil {
		e.letter = l
	}
	return err
}

// post puts a Recv in its place among those of its tag, and reports whether it is given its message
// now. It returns an error if two ends differ.
func (in *inbox) post(e *End) (now bool, err error) {
	p := e.call
	in.mu.Lock()
	defer in.mu.Unlock()
	if p.Root == driver.AnySource {
		in.anywhere++
	}
	err = errors.Join(
		in.readMail(), // so that what this rank was told of counts
		in.hand(in.matcher.Post(e, p.Tag, p.Root, in.part(e.After))))
	if err == nil && !e.captured {
		now, err = in.take(e)
	}
	if err == nil && !now {
		in.open = append(in.open, e)
	}
	return now, err
}

// expect notes receives before their waits are queued: from then on they are given their messages,
// and are released when the group ends. A call to CUDA behind such a wait may not return before the
// wait has ended: some other thread may be in one that waits for all streams.
func (in *inbox) expect(ends ...*End) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.receives = append(in.receives, ends...)
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

// lacks reports whether a stream waits for a message that is not there, or, for a Send of a graph,
// for its place. in.mu is held.
func (in *inbox) lacks(e *End) bool {
	switch {
	case in.own == nil || !e.waits():
		return false
	case e.taken != nil:
		return atomic.LoadUint32(e.taken) == 0
	}
	return e.letter == nil || !in.there(e.letter)
}

// Unanswered reports whether a Recv waits for a message of which this rank was not told.
func (in *inbox) Unanswered() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return slices.ContainsFunc(in.open, func(e *End) bool { return e.letter == nil })
}
