package message

import (
	"cmp"
	"slices"
)

// Tally counts a rank's calls of Send or Recv by peer and tag. It also knows how many calls
// preceded each collective that has not completed. The zero value is ready to use.
type Tally struct{ histories map[Key]*callHistory }

// Key identifies a counter. For receives from any rank, Peer is Any.
type Key struct{ Peer, Tag int }

// callHistory counts the calls with one key. A segment is the time between two collectives.
type callHistory struct {
	count uint64 // number of calls
	// segmentEnds has an entry for each segment with calls, in order. Count removes entries that
	// are no longer needed when there are pruneLength of them.
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

// Count records a call that this rank makes after the given number of collectives. It returns the
// number of calls with the key, including this one. completed is the number of completed
// collectives, for which Before is no longer called.
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

// prune removes segments that Before no longer needs. For the next collective, Before needs the
// last segment with at most completed collectives before it. prune keeps this segment and all later
// ones.
func (h *callHistory) prune(completed uint64) {
	unneededCount := 0
	for next := 1; next < len(h.segmentEnds); next++ {
		if h.segmentEnds[next].collectives > completed {
			break
		}

		unneededCount = next // the next segment replaces all earlier ones
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
		for _, end := range h.segmentEnds { // in order, so the last match has the highest count
			if end.collectives < collective {
				calls = end.count
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
// have been received. Each rank adds the weights of messages that it sends and subtracts the
// weights of messages that it receives. If messages are missing, the results of all ranks add up to
// 0 only with a probability of 2^-64.
//
// The constants are those of the random number generator SplitMix64.
func Weight(receiver, tag int) uint64 {
	x := (uint64(receiver)<<32 ^ uint64(tag)) + 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
