package message

import (
	"cmp"
	"slices"
)

// Tally counts a rank's calls of Send or Recv by peer and tag. It also records the number of calls
// before each incomplete collective. The zero Tally is ready to use.
type Tally struct{ histories map[Key]*callHistory }

// Key identifies a counter. For receives from any rank, Peer is Any.
type Key struct{ Peer, Tag int }

// segment is the part of a history between two collectives.
type segment struct {
	collectives uint64 // number of collectives before the segment
	endCount    uint64 // number of calls up to the end of the segment
}

// callHistory counts the calls with one key.
type callHistory struct {
	count       uint64
	segments    []segment // those with calls, in order
	pruneLength int       // length of segments at which Count prunes
}

const minPruneLength = 32

// Count records a call and returns the number of calls with the key, including this one. The other
// arguments count the collectives that were called and completed before this call.
func (t *Tally) Count(k Key, calledCollectives, completedCollectives uint64) uint64 {
	h := t.histories[k]
	if h == nil {
		if t.histories == nil {
			t.histories = map[Key]*callHistory{}
		}

		h = &callHistory{pruneLength: minPruneLength}
		t.histories[k] = h
	}

	h.count++
	if n := len(h.segments); n > 0 {
		last := &h.segments[n-1]
		isInLastSegment := calledCollectives <= last.collectives
		if isInLastSegment {
			last.endCount = h.count
			return h.count
		}
	}

	if len(h.segments) >= h.pruneLength {
		h.prune(completedCollectives)
	}

	h.segments = append(h.segments, segment{collectives: calledCollectives, endCount: h.count})
	return h.count
}

// prune removes segments that CallsBefore does not need for incomplete collectives.
func (h *callHistory) prune(completed uint64) {
	firstNeeded := 0 // the last segment before the first incomplete collective
	for i, s := range h.segments {
		if s.collectives <= completed {
			firstNeeded = i
		}
	}

	h.segments = slices.Delete(h.segments, 0, firstNeeded)
	h.pruneLength = max(minPruneLength, 2*len(h.segments))
}

// CallCount is the number of calls with a key.
type CallCount struct {
	Key
	Calls uint64
}

// CallsBefore returns the number of calls before an incomplete collective, for each key with such
// calls. The result is sorted by peer and tag. Collectives are numbered from 1.
func (t *Tally) CallsBefore(collective uint64) []CallCount {
	var all []CallCount
	for k, h := range t.histories {
		calls := uint64(0)
		for _, s := range h.segments {
			isBefore := s.collectives < collective
			if isBefore {
				calls = s.endCount
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

// Weight hashes the receiver and tag of a message with the mixer of SplitMix64. Over all ranks, the
// weights of sent messages minus those of received messages add up to 0. If messages are missing,
// the sum is 0 with a probability of only 2^-64.
func Weight(receiver, tag int) uint64 {
	x := ((uint64(receiver) << 32) ^ uint64(tag)) + 0x9e3779b97f4a7c15
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9
	x = (x ^ (x >> 27)) * 0x94d049bb133111eb
	return x ^ (x >> 31)
}
