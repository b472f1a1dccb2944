package message

import (
	"cmp"
	"slices"
)

// A Tally knows how many calls of Send (or of Recv) preceded each collective. Suppose that a rank
// calls Send to rank 1 with tag 7 two times, then the first collective, and then Send once more.
// For the key (rank 1, tag 7), the Tally holds:
//
//	segment    calls up to its end
//	0          2
//	1          3
//
// A segment is the time between two collectives. Its number is the number of collectives before it.
// So two of the calls preceded collective 1, and three preceded collective 2.

// Tally counts a rank's calls of Send or Recv by peer and tag. It also knows how many calls
// preceded each collective that has not completed. The zero value is ready to use.
type Tally struct{ histories map[Key]*callHistory }

// Key identifies a counter. For receives from any rank, Peer is Any.
type Key struct{ Peer, Tag int }

// callHistory counts the calls with one key.
type callHistory struct {
	count uint64 // number of calls
	// segmentEnds has an entry for each segment with calls, in order. If there are pruneLength of
	// them, Count removes those that are no longer needed.
	segmentEnds []segmentEnd
	pruneLength int
}

// segmentEnd describes the end of a segment.
type segmentEnd struct {
	collectives uint64 // number of collectives before the segment
	count       uint64 // number of calls in this and all earlier segments
}

// minPruneLength is the least value of callHistory.pruneLength. It is small enough that the entries
// need less than 1 KiB, and large enough that Count rarely removes entries.
const minPruneLength = 32

// Count records a call and returns the number of calls with the key, including this one.
// collectives is the number of collectives that this rank called before. completed is the number of
// completed collectives, for which Before is no longer called.
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
	last := len(h.segmentEnds) - 1
	isInLastSegment := last >= 0 && h.segmentEnds[last].collectives >= collectives
	if isInLastSegment {
		h.segmentEnds[last].count = h.count
		return h.count
	}

	if len(h.segmentEnds) >= h.pruneLength {
		h.prune(completed)
	}

	end := segmentEnd{collectives: collectives, count: h.count}
	h.segmentEnds = append(h.segmentEnds, end)
	return h.count
}

// prune removes segments that Before no longer needs. For the first collective that has not
// completed, Before needs the last segment before this collective. prune keeps this segment and all
// later ones.
func (h *callHistory) prune(completed uint64) {
	unneededCount := 0
	for i := 1; i < len(h.segmentEnds); i++ {
		if h.segmentEnds[i].collectives > completed {
			break
		}

		unneededCount = i // segment i is before the collective, so the earlier ones are not needed
	}

	h.segmentEnds = slices.Delete(h.segmentEnds, 0, unneededCount)
	h.pruneLength = max(minPruneLength, 2*len(h.segmentEnds))
}

// CallCount is the number of calls with a key.
type CallCount struct {
	Key
	Calls uint64
}

// Before returns how many calls preceded a collective, for each key with such calls. The result is
// ordered by peer and tag. Collectives are numbered from 1. The collective must not have completed.
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

// Weight returns a hash of a message's receiver and tag. With it, ranks check that all messages
// have been received: each rank adds the weights of the messages that it sends, and subtracts those
// of the messages that it receives. The results of all ranks then add up to 0. If messages are
// missing, they do so only with a probability of 2^-64.
//
// The constants are those of the random number generator SplitMix64.
func Weight(receiver, tag int) uint64 {
	x := (uint64(receiver)<<32 ^ uint64(tag)) + 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
