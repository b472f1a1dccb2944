package message

import (
	"cmp"
	"slices"
)

// A Matcher assigns messages to the receives of one rank. A receive claims the message that is
// assigned to it. Suppose that rank 0 receives messages with tag 7:
//
//   - A receive from rank 1 claims message 1 of rank 1: the first with tag 7. It need not have
//     arrived yet. The next receive from rank 1 claims message 2.
//   - A receive from Any claims a message of any rank, but only after the message has arrived.
//   - Receives with one tag claim messages in order. If the first one is from Any, and no message
//     has arrived, the later ones wait too.
//
// Messages can be ordered with collectives. A segment is the time between two collectives. Its
// number is the number of collectives before it. Rank 1 may be faster than rank 0, and send a
// message in segment 3 while rank 0 receives from Any in segment 2. This receive must not claim the
// message.

// Any is the source of a receive that accepts a message from any rank.
const Any = -1

// Matcher assigns messages to the receives of one rank. A value of type R identifies a receive. The
// zero Matcher is ready to use.
type Matcher[R any] struct {
	queues map[int]*queue[R] // by tag
	claims []Claim[R]        // memory for the result of Post and Arrive, reused by each call
}

// Claim is a message that has been assigned to a receive.
type Claim[R any] struct {
	Receive R
	Source  int    // rank that sends the message, which may not have arrived yet
	Number  uint64 // number of the message, counted from 1 for each source and tag
}

// Arrival describes a message that has begun to arrive.
type Arrival struct {
	Source, Tag int
	Number      uint64 // counted from 1 for each source and tag
	// Segment is the number of collectives that the source called before the Send. It is always 0
	// if messages are not ordered with collectives.
	Segment uint64
}

// queue holds the receives and messages with one tag.
type queue[R any] struct {
	// claimedCounts holds the number of claimed messages by source. The messages of a source are
	// claimed in order, so this is also the number of the latest claimed one.
	claimedCounts   map[int]uint64
	waitingReceives []waitingReceive[R]    // receives without a message, in the order of Post
	unclaimed       map[messageID]struct{} // messages that have arrived but are not claimed
	// arrivals lists messages in the order of Arrive: all unclaimed ones, and claimed ones that
	// markClaimed has not removed yet.
	arrivals []Arrival
}

// messageID identifies a message among those with one tag.
type messageID struct {
	source int
	number uint64 // from 1 for each source
}

type waitingReceive[R any] struct {
	receive R
	source  int    // rank or Any
	segment uint64 // number of collectives that this rank called before
}

// ensureQueue returns the queue of a tag, and creates it if necessary.
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

// Post records the receive r from a source, which is a rank or Any. It returns the resulting
// claims, which are valid until the next call of Post or Arrive.
//
// segment is the number of collectives that this rank called before the receive. It is always 0 if
// messages are not ordered with collectives. A receive from Any accepts only messages of the same
// segment.
func (m *Matcher[R]) Post(r R, tag, source int, segment uint64) []Claim[R] {
	q := m.ensureQueue(tag)
	receive := waitingReceive[R]{receive: r, source: source, segment: segment}
	q.waitingReceives = append(q.waitingReceives, receive)
	return m.claimMessages(q)
}

// Arrive records that a message has begun to arrive. It returns the resulting claims, which are
// valid until the next call of Post or Arrive. It ignores a message that was recorded or claimed
// before.
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

// claimMessages assigns messages to the waiting receives of q in order, and returns the claims. It
// stops at the first receive from Any that finds no message.
func (m *Matcher[R]) claimMessages(q *queue[R]) []Claim[R] {
	m.claims = m.claims[:0]
	claimedCount := 0
	for _, w := range q.waitingReceives {
		source := w.source
		if source == Any {
			source = q.nextSource(w.segment)
		}

		isSourceKnown := source != Any
		if !isSourceKnown {
			break
		}

		number := q.claimedCounts[source] + 1
		q.markClaimed(messageID{source: source, number: number})
		claim := Claim[R]{Receive: w.receive, Source: source, Number: number}
		m.claims = append(m.claims, claim)
		claimedCount++
	}

	q.waitingReceives = slices.Delete(q.waitingReceives, 0, claimedCount)
	return m.claims
}

// markClaimed records that a message is claimed. It must be the next one of its source. When more
// than half of the arrivals are claimed, markClaimed removes these from arrivals. So their number
// stays small, and few calls pay for the removal.
func (q *queue[R]) markClaimed(id messageID) {
	q.claimedCounts[id.source] = id.number
	delete(q.unclaimed, id)
	if len(q.arrivals) > 2*len(q.unclaimed) {
		q.arrivals = slices.DeleteFunc(q.arrivals, q.isClaimed)
	}
}

// isClaimed reports whether an arrival has been claimed.
func (q *queue[R]) isClaimed(a Arrival) bool { return a.Number <= q.claimedCounts[a.Source] }

// nextSource returns the source of the message that a receive from Any claims: the earliest arrival
// with the given segment that is the next message of its source. It returns Any if there is none.
func (q *queue[R]) nextSource(segment uint64) (source int) {
	for _, a := range q.arrivals {
		isNextOfSource := a.Number == q.claimedCounts[a.Source]+1
		if isNextOfSource && a.Segment == segment {
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
