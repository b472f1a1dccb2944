package message

import (
	"cmp"
	"slices"
)

// Tally counts a rank's calls of Send or Recv by peer and tag. The zero value is ready to use.
type Tally struct{ histories map[Key]*callHistory }

// Key identifies a counter. For receives from any rank, Peer is Any.
type Key struct{ Peer, Tag int }

type callHistory struct {
	count uint64
	// segmentEnds has one element for each segment (the time between two collectives) with calls.
	segmentEnds []segmentEnd
	pruneLength int // length at which segmentEnds is pruned
}

// segmentEnd holds the number of calls up to the end of the segment that starts after the given
// number of collectives.
type segmentEnd struct{ collectives, count uint64 }

const minPruneLength = 32

// Count records a call after the given number of collectives, and returns the number of calls with
// this key. completed is the number of completed collectives, for which Before is no longer called.
func (t *Tally) Count(k Key, collectives, completed uint64) uint64 {
	r := t.histories[k]
	if r == nil {
		if t.histories == nil {
			t.histories = map[Key]*callHistory{}
		}
		r = &callHistory{pruneLength: minPruneLength}
		t.histories[k] = r
	}
	r.count++
	if last := len(r.segmentEnds) - 1; last >= 0 && r.segmentEnds[last].collectives >= collectives {
		r.segmentEnds[last].count = r.count
		return r.count
	}
	if len(r.segmentEnds) >= r.pruneLength {
		r.prune(completed)
	}
	r.segmentEnds = append(r.segmentEnds, segmentEnd{collectives, r.count})
	return r.count
}

func (r *callHistory) prune(completed uint64) {
	unneeded := 0
	for unneeded+1 < len(r.segmentEnds) && r.segmentEnds[unneeded+1].collectives <= completed {
		unneeded++
	}
	r.segmentEnds = slices.Delete(r.segmentEnds, 0, unneeded)
	r.pruneLength = max(minPruneLength, 2*len(r.segmentEnds))
}

// CallCount is the number of calls for a key.
type CallCount struct {
	Key
	Calls uint64
}

// Before returns, for each key with calls, how many calls preceded a collective, ordered by peer
// and tag. The collective, numbered from 1, must not have completed.
func (t *Tally) Before(collective uint64) []CallCount {
	var all []CallCount
	for k, r := range t.histories {
		calls := uint64(0)
		for _, e := range r.segmentEnds {
			if e.collectives < collective {
				calls = e.count
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

// Weight returns the weight of a message. If the ranks' sums of sent weights minus received weights
// add up to 0, all messages have been received, except with a probability of 2^-64.
func Weight(receiver, tag int) uint64 {
	x := uint64(receiver)<<32 ^ uint64(tag) + 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
