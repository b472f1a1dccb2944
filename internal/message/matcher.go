package message

import (
	"cmp"
	"slices"
)

// Any is the source of a receive that accepts messages from all ranks.
const Any = -1

// Matcher assigns arriving messages to the receives of one rank, represented by values of type R.
// The zero value is ready to use.
type Matcher[R any] struct {
	tags   map[int]*queue[R]
	claims []Claim[R] // result of the latest call
}

// Claim assigns a message to a receive.
type Claim[R any] struct {
	Receive R
	Source  int
	// Number counts the messages with the same source and tag, from 1.
	Number uint64
}

// Arrival describes a message that has arrived.
type Arrival struct {
	Source, Tag int
	Number      uint64
	// Segment is the number of collectives that the source called before, or 0 if messages and
	// collectives are not ordered.
	Segment uint64
}

// queue holds the messages and receives of one tag.
type queue[R any] struct {
	claimed map[int]uint64      // number of claimed messages, by source
	waiting []waitingReceive[R] // receives without a claim, in the order of calls
	// arrived holds messages in the order of arrival, and present the ids of those not claimed yet.
	arrived []Arrival
	present map[messageID]struct{}
}

// messageID identifies a message within a tag.
type messageID struct {
	source int
	number uint64
}

type waitingReceive[R any] struct {
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
		q = &queue[R]{claimed: map[int]uint64{}, present: map[messageID]struct{}{}}
		m.tags[tag] = q
	}
	return q
}

// Post records a receive from a source, which may be Any, and returns the resulting claims, which
// are valid until the next call. A receive from Any accepts only messages in its own segment,
// because a faster rank may already have sent later ones.
func (m *Matcher[R]) Post(r R, tag, source int, segment uint64) []Claim[R] {
	q := m.queue(tag)
	q.waiting = append(q.waiting, waitingReceive[R]{r, source, segment})
	return m.claim(q)
}

// Arrive records that a message has arrived or begun to arrive, and returns the resulting claims.
// It ignores messages that it already knows.
func (m *Matcher[R]) Arrive(a Arrival) []Claim[R] {
	q := m.queue(a.Tag)
	id := messageID{a.Source, a.Number}
	if _, duplicate := q.present[id]; duplicate || a.Number <= q.claimed[a.Source] {
		return nil
	}
	q.present[id] = struct{}{}
	q.arrived = append(q.arrived, a)
	return m.claim(q)
}

// claim stops at the first receive for which there is no message.
func (m *Matcher[R]) claim(q *queue[R]) []Claim[R] {
	m.claims = m.claims[:0]
	done := 0
	for _, w := range q.waiting {
		source := w.source
		if source == Any {
			if source = q.nextSource(w.segment); source == Any {
				break
			}
		}
		number := q.claimed[source] + 1
		q.claimed[source] = number
		q.drop(messageID{source, number})
		m.claims = append(m.claims, Claim[R]{w.receive, source, number})
		done++
	}
	q.waiting = slices.Delete(q.waiting, 0, done)
	return m.claims
}

func (q *queue[R]) drop(id messageID) {
	delete(q.present, id)
	if len(q.arrived) > 2*len(q.present) {
		q.arrived = slices.DeleteFunc(q.arrived, q.isClaimed)
	}
}

func (q *queue[R]) isClaimed(a Arrival) bool { return a.Number <= q.claimed[a.Source] }

// nextSource returns the source whose next message is in the given segment and arrived first, or
// Any if there is none.
func (q *queue[R]) nextSource(segment uint64) (source int) {
	for _, a := range q.arrived {
		if a.Segment == segment && a.Number == q.claimed[a.Source]+1 {
			return a.Source
		}
	}
	return Any
}

// Unclaimed returns the messages that have arrived but have not been claimed, ordered by tag,
// source and number.
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
