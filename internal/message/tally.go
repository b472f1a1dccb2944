package message

import (
	"cmp"
	"slices"
)

// Tally counts a rank's calls of Send or Recv by peer and tag. For each collective that has not
// completed, it records how many calls came before. The zero Tally is ready to use.
type Tally struct{ histories map[Key]*callHistory }

// Key identifies a counter. For receives from any rank, Peer is Any.
type Key struct{ Peer, Tag int }

// callHistory counts the calls with one key, by segment: the time between two collectives.
type callHistory struct {
	count       uint64
	segmentEnds []segmentEnd // in order; segments without calls have no entry
	pruneLength int          // length of segmentEnds at which Count removes old entries
}

type segmentEnd struct {
	collectives uint64 // number of collectives before the segment
	count       uint64 // number of calls before the end of the segment
}

// minPruneLength is arbitrary, but rarely reached: 512 bytes of entries.
const minPruneLength = 32

// Count records a call and returns the number of calls with the key, including this one.
// collectives is the number of collectives that this rank called before, and completed is the
// number of collectives that have completed. Before must not be called for completed collectives.
func (t *Tally) Count(k Key, collectives, completed uint64) uint64 {
	h := t.histories[k]
	if h == nil {
		if t.histories == nil {
			t.histories = map[Key]*callHistory{}
		}

		h = &callHistory{pruneLength: minPruneLength}
		t.histories[k] = h
	}

	h.count++
	if n := len(h.segmentEnds); n > 0 {
		last := &h.segmentEnds[n-1]
		isInLastSegment := collectives <= last.collectives
		if isInLastSegment {
			last.count = h.count
			return h.count
		}
	}

	if len(h.segmentEnds) >= h.pruneLength {
		h.prune(completed)
	}

	end := segmentEnd{collectives: collectives, count: h.count}
	h.segmentEnds = append(h.segmentEnds, end)
	return h.count
}

// prune removes old segments. Of those before the first incomplete collective, Before needs only
// the last.
func (h *callHistory) prune(completed uint64) {
	removedCount := 0
	for i := 1; i < len(h.segmentEnds); i++ {
		isAfterIncomplete := h.segmentEnds[i].collectives > completed
		if isAfterIncomplete {
			break
		}

		removedCount = i
	}

	h.segmentEnds = slices.Delete(h.segmentEnds, 0, removedCount)
	h.pruneLength = max(minPruneLength, 2*len(h.segmentEnds))
}

// CallCount is the number of calls with a key.
type CallCount struct {
	Key
	Calls uint64
}

// Before returns the number of calls before an incomplete collective, for each key with such calls.
// The result is sorted by peer and tag. Collectives are numbered from 1.
func (t *Tally) Before(collective uint64) []CallCount {
	var all []CallCount
	for k, h := range t.histories {
		calls := uint64(0)
		for _, end := range h.segmentEnds {
			isBefore := end.collectives < collective
			if isBefore {
				calls = end.count // includes the calls of earlier segments
			}
		}

		if calls > 0 {
			all = append(all, CallCount{Key: k, Calls: calls})
		}
	}

	slices.SortFunc(all, func(a, b CallCount) int {
		return cmp.Or(cmp.Compare(a.Peer, b.Peer), cmp.Compare(a.Tag, b.Tag))
	})
	return all
}

// Weight hashes the receiver and tag of a message with the mixer of SplitMix64. All ranks add the
// weights of sent messages, and subtract the weights of received messages. If messages are missing,
// the sum is 0 only with probability 2^-64.
func Weight(receiver, tag int) uint64 {
	x := (uint64(receiver)<<32 ^ uint64(tag)) + 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
