package message

import (
	"cmp"
	"slices"
)

// Any is the source of a receive that accepts messages from all ranks.
const Any = -1

// Matcher assigns arriving messages to the receives of one rank, which values of type R represent.
// The zero value is ready to use.
type Matcher[R any] struct {
	tags   map[int]*queue[R]
	claims []Claim[R] // result of the latest call
}

// Claim is a message that has been assigned to a receive.
type Claim[R any] struct {
	Receive R
	Source  int    // rank that sent the message
	Number  uint64 // from 1, for each source and tag
}

// Arrival describes a message that has arrived.
type Arrival struct {
	Source, Tag int
	Number      uint64
	// Segment is the number of collectives that the source called before the Send, or 0 if messages
	// are not ordered with collectives.
	Segment uint64
}

type queue[R any] struct {
	claimedCounts   map[int]uint64      // by source
	waitingReceives []waitingReceive[R] // in the order of calls
	arrivals        []Arrival           // in order; some claimed messages have been removed
	unclaimed       map[messageID]struct{}
}

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
		q = &queue[R]{claimedCounts: map[int]uint64{}, unclaimed: map[messageID]struct{}{}}
		m.tags[tag] = q
	}
	return q
}

// Post records a receive from a source, which may be Any, and returns the resulting claims, which
// are valid until the next call. A receive from Any accepts only messages with the same segment
// (number of earlier collectives), because a faster rank may have sent later messages.
func (m *Matcher[R]) Post(r R, tag, source int, segment uint64) []Claim[R] {
	q := m.queue(tag)
	q.waitingReceives = append(q.waitingReceives, waitingReceive[R]{r, source, segment})
	return m.claimMessages(q)
}

// Arrive records that a message has begun to arrive, and returns the resulting claims. It ignores
// duplicates.
func (m *Matcher[R]) Arrive(a Arrival) []Claim[R] {
	q := m.queue(a.Tag)
	id := messageID{a.Source, a.Number}
	if _, duplicate := q.unclaimed[id]; duplicate || a.Number <= q.claimedCounts[a.Source] {
		return nil
	}
	q.unclaimed[id] = struct{}{}
	q.arrivals = append(q.arrivals, a)
	return m.claimMessages(q)
}

func (m *Matcher[R]) claimMessages(q *queue[R]) []Claim[R] {
	m.claims = m.claims[:0]
	claimedCount := 0
	for _, w := range q.waitingReceives {
		source := w.source
		if source == Any {
			if source = q.nextSource(w.segment); source == Any {
				break
			}
		}
		number := q.claimedCounts[source] + 1
		q.claimedCounts[source] = number
		q.removeClaimed(messageID{source, number})
		m.claims = append(m.claims, Claim[R]{w.receive, source, number})
		claimedCount++
	}
	q.waitingReceives = slices.Delete(q.waitingReceives, 0, claimedCount)
	return m.claims
}

func (q *queue[R]) removeClaimed(id messageID) {
	delete(q.unclaimed, id)
	if len(q.arrivals) > 2*len(q.unclaimed) {
		q.arrivals = slices.DeleteFunc(q.arrivals, q.isClaimed)
	}
}

func (q *queue[R]) isClaimed(a Arrival) bool { return a.Number <= q.claimedCounts[a.Source] }

// nextSource returns the source of the first arrival that is the next message of its source and has
// the given segment, or Any.
func (q *queue[R]) nextSource(segment uint64) (source int) {
	for _, a := range q.arrivals {
		if a.Segment == segment && a.Number == q.claimedCounts[a.Source]+1 {
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
		for _, a := range q.arrivals {
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
