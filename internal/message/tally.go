package message

import (
	"cmp"
	"slices"
)

// Tally counts a rank's calls of Send or Recv by peer and tag. It also knows how many of them
// preceded each collective. The zero value is ready to use.
type Tally struct{ histories map[Key]*callHistory }

// Key identifies a counter. For receives from any rank, Peer is Any.
type Key struct{ Peer, Tag int }

// callHistory holds the calls with one key. A segment is the time between two collectives.
type callHistory struct {
	count       uint64       // number of calls
	segmentEnds []segmentEnd // of the segments with calls, in order; unneeded ones are pruned
	pruneLength int          // length at which segmentEnds is pruned
}

// segmentEnd describes the end of a segment that starts after the given number of collectives.
type segmentEnd struct {
	collectives uint64
	count       uint64 // number of calls in this and all earlier segments
}

const minPruneLength = 32

// Count records a call after the given number of collectives, and returns the number of calls with
// this key. completed is the number of completed collectives, for which Before is no longer
// called.
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
	h.segmentEnds = append(h.segmentEnds, segmentEnd{collectives, h.count})
	return h.count
}

// prune removes segments that Before no longer needs. It keeps the last segment that starts after
// at most completed collectives, and all later ones.
func (h *callHistory) prune(completed uint64) {
	unneeded := 0
	for unneeded+1 < len(h.segmentEnds) && h.segmentEnds[unneeded+1].collectives <= completed {
		unneeded++
	}
	h.segmentEnds = slices.Delete(h.segmentEnds, 0, unneeded)
	h.pruneLength = max(minPruneLength, 2*len(h.segmentEnds))
}

// CallCount is the number of calls with a key.
type CallCount struct {
	Key
	Calls uint64
}

// Before returns how many calls preceded a collective, for each key with such calls, ordered by
// peer and tag. Collectives are numbered from 1. The collective must not have completed.
func (t *Tally) Before(collective uint64) []CallCount {
	var all []CallCount
	for k, h := range t.histories {
		calls := uint64(0)
		for _, end := range h.segmentEnds {
			if end.collectives < collective {
				calls = end.count
			}
		}
		if calls > 0 {
			all = append(all, CallCount{k, calls})
		}
	}
	slices.SortFunc(all, func(a, b CallCount) int {
		return cmp.Or(cmp.Compare(a.Peer, b.Peer), cmp.Compare(a.Tag, b.Tag))
	})
	return all
}

// Weight returns a hash of a message's receiver and tag, computed with SplitMix64. Each rank adds
// the weights of messages that it sends and subtracts those that it receives. If the results of
// all ranks add up to 0, all messages have been received, except with a probability of 2^-64.
func Weight(receiver, tag int) uint64 {
	x := uint64(receiver)<<32 ^ uint64(tag) + 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
