package message

import (
	"cmp"
	"slices"
)

// Any is the source of a receive that accepts a message from any rank.
const Any = -1

// Matcher assigns messages to the receives of one rank. A value of type R identifies a receive.
// The zero value is ready to use.
type Matcher[R any] struct {
	queues map[int]*queue[R] // by tag
	claims []Claim[R]        // result of the latest Post or Arrive, reused by the next
}

// Claim is a message that has been assigned to a receive.
type Claim[R any] struct {
	Receive R
	Source  int    // rank that sends the message, which may not have arrived yet
	Number  uint64 // of the message, counted from 1 for each source and tag
}

// Arrival describes a message that has begun to arrive.
type Arrival struct {
	Source, Tag int
	Number      uint64 // counted from 1 for each source and tag
	// Segment is the number of collectives that the source called before the Send, or 0 if messages
	// are not ordered with collectives.
	Segment uint64
}

// queue holds the receives and messages with one tag.
type queue[R any] struct {
	claimedCounts   map[int]uint64      // by source: the number of its messages that were claimed
	waitingReceives []waitingReceive[R] // receives without a message, in the order of Post
	// arrivals lists messages in the order of Arrive: all unclaimed ones, and some claimed ones
	// that markClaimed has not removed yet.
	arrivals  []Arrival
	unclaimed map[messageID]struct{} // arrived messages that were not claimed
}

type messageID struct {
	source int
	number uint64
}

type waitingReceive[R any] struct {
	receive R
	source  int    // rank or Any
	segment uint64 // number of earlier collectives
}

// queue returns the queue of a tag, which it creates if necessary.
func (m *Matcher[R]) queue(tag int) *queue[R] {
	q := m.queues[tag]
	if q == nil {
		if m.queues == nil {
			m.queues = map[int]*queue[R]{}
		}
		q = &queue[R]{claimedCounts: map[int]uint64{}, unclaimed: map[messageID]struct{}{}}
		m.queues[tag] = q
	}
	return q
}

// Post records receive r from a rank or Any. It returns the resulting claims, which are valid
// until the next call of Post or Arrive. segment is the number of collectives that this rank
// called before the receive, or 0 if messages are not ordered with collectives. A receive from Any
// accepts only messages of the same segment, because a faster rank may have sent messages of a
// later segment.
func (m *Matcher[R]) Post(r R, tag, source int, segment uint64) []Claim[R] {
	q := m.queue(tag)
	q.waitingReceives = append(q.waitingReceives, waitingReceive[R]{r, source, segment})
	return m.claimMessages(q)
}

// Arrive records that a message has begun to arrive, and returns the resulting claims, which are
// valid until the next call of Post or Arrive. It ignores a message that was recorded or claimed.
func (m *Matcher[R]) Arrive(a Arrival) []Claim[R] {
	q := m.queue(a.Tag)
	id := messageID{a.Source, a.Number}
	_, isRecorded := q.unclaimed[id]
	if isRecorded || q.isClaimed(a) {
		return nil
	}
	q.unclaimed[id] = struct{}{}
	q.arrivals = append(q.arrivals, a)
	return m.claimMessages(q)
}

// claimMessages assigns messages to the waiting receives of q in order. It stops at the first
// receive from Any for which no message has arrived.
func (m *Matcher[R]) claimMessages(q *queue[R]) []Claim[R] {
	m.claims = m.claims[:0]
	claimedCount := 0
	for _, w := range q.waitingReceives {
		source := w.source
		if source == Any {
			source = q.nextSource(w.segment)
		}
		if source == Any {
			break
		}
		number := q.claimedCounts[source] + 1
		q.markClaimed(messageID{source, number})
		m.claims = append(m.claims, Claim[R]{w.receive, source, number})
		claimedCount++
	}
	q.waitingReceives = slices.Delete(q.waitingReceives, 0, claimedCount)
	return m.claims
}

// markClaimed records that the next message of a source is claimed. When more than half of the
// arrivals are claimed, it removes them.
func (q *queue[R]) markClaimed(id messageID) {
	q.claimedCounts[id.source] = id.number
	delete(q.unclaimed, id)
	if len(q.arrivals) > 2*len(q.unclaimed) {
		q.arrivals = slices.DeleteFunc(q.arrivals, q.isClaimed)
	}
}

func (q *queue[R]) isClaimed(a Arrival) bool { return a.Number <= q.claimedCounts[a.Source] }

// nextSource returns the source of the message that a receive from Any claims: the earliest
// arrival with the given segment that is its source's next message. It returns Any if there is
// none.
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
