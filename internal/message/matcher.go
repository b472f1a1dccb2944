package message

import (
	"cmp"
	"slices"
)

// Any is the source of a receive that accepts a message from any rank.
const Any = -1

// Matcher assigns messages to the receives of one rank. Receives with the same tag claim messages
// in the order of Post. A receive from a given source claims the next message of this source, even
// before it arrives. A receive from Any waits for a message, and blocks the receives after it.
// Values of type R identify receives. The zero Matcher is ready to use.
type Matcher[R any] struct {
	queues map[int]*queue[R] // by tag
	claims []Claim[R]        // result of Post and Arrive, reused by each call
}

// Claim assigns a message to a receive.
type Claim[R any] struct {
	Receive R
	Source  int    // rank that sends the message
	Number  uint64 // see Arrival
}

// Arrival describes a message that has begun to arrive.
type Arrival struct {
	Source, Tag int
	Number      uint64 // number of the message, from 1 for each source and tag
	Segment     uint64 // number of earlier collectives; 0 if collectives do not order messages
}

// queue holds the receives and messages with one tag.
type queue[R any] struct {
	claimedCounts   map[int]uint64         // number of claimed messages, by source
	waitingReceives []waitingReceive[R]    // in the order of Post
	unclaimed       map[messageID]struct{} // messages that have arrived but are not claimed
	arrivals        []Arrival              // in order; includes some claimed messages
}

type messageID struct {
	source int
	number uint64
}

type waitingReceive[R any] struct {
	receive R
	source  int    // rank or Any
	segment uint64 // see Post
}

func (m *Matcher[R]) ensureQueue(tag int) *queue[R] {
	q := m.queues[tag]
	if q == nil {
		if m.queues == nil {
			m.queues = map[int]*queue[R]{}
		}

		q = &queue[R]{
			claimedCounts: map[int]uint64{},
			unclaimed:     map[messageID]struct{}{},
		}
		m.queues[tag] = q
	}

	return q
}

// Post records a receive from a rank or Any. It returns the resulting claims, which are valid until
// the next call of Post or Arrive. A receive from Any accepts only messages of the segment.
func (m *Matcher[R]) Post(r R, tag, source int, segment uint64) []Claim[R] {
	q := m.ensureQueue(tag)
	receive := waitingReceive[R]{receive: r, source: source, segment: segment}
	q.waitingReceives = append(q.waitingReceives, receive)
	return m.claimMessages(q)
}

// Arrive records that a message has begun to arrive. It returns the resulting claims, which are
// valid until the next call of Post or Arrive. It ignores repeated arrivals.
func (m *Matcher[R]) Arrive(a Arrival) []Claim[R] {
	q := m.ensureQueue(a.Tag)
	id := messageID{source: a.Source, number: a.Number}
	_, isRecorded := q.unclaimed[id]
	if isRecorded || q.isClaimed(a) {
		return nil
	}

	q.unclaimed[id] = struct{}{}
	q.arrivals = append(q.arrivals, a)
	return m.claimMessages(q)
}

// claimMessages assigns messages to waiting receives. It stops at a receive from Any for which no
// message has arrived.
func (m *Matcher[R]) claimMessages(q *queue[R]) []Claim[R] {
	m.claims = m.claims[:0]
	for _, w := range q.waitingReceives {
		source := w.source
		if source == Any {
			var hasArrived bool
			source, hasArrived = q.nextSource(w.segment)
			if !hasArrived {
				break
			}
		}

		claim := Claim[R]{Receive: w.receive, Source: source, Number: q.claimNext(source)}
		m.claims = append(m.claims, claim)
	}

	q.waitingReceives = slices.Delete(q.waitingReceives, 0, len(m.claims))
	return m.claims
}

// claimNext claims the next message of a source and returns its number. Claimed messages stay in
// q.arrivals until they are the majority, so that the amortized cost of their removal is constant.
func (q *queue[R]) claimNext(source int) (number uint64) {
	number = q.claimedCounts[source] + 1
	q.claimedCounts[source] = number
	delete(q.unclaimed, messageID{source: source, number: number})
	if len(q.arrivals) > 2*len(q.unclaimed) {
		q.arrivals = slices.DeleteFunc(q.arrivals, q.isClaimed)
	}

	return number
}

func (q *queue[R]) isClaimed(a Arrival) bool { return a.Number <= q.claimedCounts[a.Source] }

// nextSource returns the source of the earliest arrival that a receive from Any can claim.
func (q *queue[R]) nextSource(segment uint64) (source int, hasArrived bool) {
	for _, a := range q.arrivals {
		isNextOfSource := a.Number == q.claimedCounts[a.Source]+1
		if isNextOfSource && a.Segment == segment {
			return a.Source, true
		}
	}

	return Any, false
}

// Unclaimed returns the messages that have arrived but are not claimed, ordered by tag, source and
// number.
func (m *Matcher[R]) Unclaimed() []Arrival {
	var all []Arrival
	for _, q := range m.queues {
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
