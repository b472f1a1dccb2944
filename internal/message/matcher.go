package message

import (
	"cmp"
	"slices"
)

// Any is the source of a receive that takes from whichever rank sends first.
const Any = -1

// Matcher claims messages for the receives R of one rank. The zero value is ready.
type Matcher[R any] struct {
	tags   map[int]*queue[R]
	claims []Claim[R] // what the latest call has returned
}

// Claim says which message a receive gets.
type Claim[R any] struct {
	Receive R
	// Source is the rank that sends it; Number is its number among those of the source with the tag.
	Source int
	Number uint64
}

// Arrival is a message that has arrived.
type Arrival struct {
	Source, Tag int
	Number      uint64
	// Segment is how many collectives the source had called before, where messages and collectives
	// are numbered together; else 0.
	Segment uint64
}

// queue is what a tag has.
type queue[R any] struct {
	claimed map[int]uint64 // how many numbers of each source are claimed
	waiting []waiting[R]   // receives that have claimed nothing, in the order of calls
	// arrived are messages in the order of arrival; those that were claimed since are dropped when
	// they are more than the others, which present holds.
	arrived []Arrival
	present map[place]struct{}
}

// place is a message of a tag.
type place struct {
	source int
	number uint64
}

// waiting is a receive that has claimed nothing yet.
type waiting[R any] struct {
	receive R
	source  int
	segment uint64
}

func (m *Matcher[R]) queue(tag int) *queue[R] {
	q := m.tags[tag]
	if q == nil {
		if m.tags == nil {
			m.tags = map[int]*queue[R]{}
		}
		q = &queue[R]{claimed: map[int]uint64{}, present: map[place]struct{}{}}
		m.tags[tag] = q
	}
	return q
}

// Post tells of the call of a receive from a source, or from Any, in a segment. One from Any takes
// messages of its own segment alone: a rank that is ahead may have sent one of a later segment
// already. It returns what is claimed by that, in order; the slice is valid until the next call.
func (m *Matcher[R]) Post(r R, tag, source int, segment uint64) []Claim[R] {
	q := m.queue(tag)
	q.waiting = append(q.waiting, waiting[R]{r, source, segment})
	return m.claim(q)
}

// Arrive notes that a message has arrived, or has begun to. It returns what is claimed by that. A
// message that is claimed already, or has arrived before, changes nothing.
func (m *Matcher[R]) Arrive(a Arrival) []Claim[R] {
	q := m.queue(a.Tag)
	at := place{a.Source, a.Number}
	if _, twice := q.present[at]; twice || a.Number <= q.claimed[a.Source] {
		return nil
	}
	q.present[at] = struct{}{}
	q.arrived = append(q.arrived, a)
	return m.claim(q)
}

// claim hands out messages as long as the first receive that waits can have one.
func (m *Matcher[R]) claim(q *queue[R]) []Claim[R] {
	m.claims = m.claims[:0]
	done := 0
	for _, w := range q.waiting {
		source := w.source
		if source == Any {
			if source = q.first(w.segment); source == Any {
				break
			}
		}
		number := q.claimed[source] + 1
		q.claimed[source] = number
		q.drop(place{source, number})
		m.claims = append(m.claims, Claim[R]{w.receive, source, number})
		done++
	}
	q.waiting = slices.Delete(q.waiting, 0, done)
	return m.claims
}

// drop forgets a message that is claimed now.
func (q *queue[R]) drop(at place) {
	delete(q.present, at)
	if len(q.arrived) > 2*len(q.present) {
		q.arrived = slices.DeleteFunc(q.arrived, q.isClaimed)
	}
}

func (q *queue[R]) isClaimed(a Arrival) bool { return a.Number <= q.claimed[a.Source] }

// first returns the source of the message that has arrived first of those of a segment whose turn
// it is.
func (q *queue[R]) first(segment uint64) (source int) {
	for _, a := range q.arrived {
		if a.Segment == segment && a.Number == q.claimed[a.Source]+1 {
			return a.Source
		}
	}
	return Any
}

// Unclaimed lists the messages that have arrived and that no receive has claimed, by tag, source
// and number.
func (m *Matcher[R]) Unclaimed() []Arrival {
	var all []Arrival
	for _, q := range m.tags {
		for _, a := range q.arrived {
			if !q.isClaimed(a) {
				all = append(all, a)
			}
		}
	}
	slices.SortFunc(all, func(a, b Arrival) int {
		return cmp.Or(cmp.Compare(a.Tag, b.Tag), cmp.Compare(a.Source, b.Source),
			cmp.Compare(a.Number, b.Number))
	})
	return all
}
