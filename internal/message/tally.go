package message

import (
	"cmp"
	"slices"
)

// Tally counts a rank's calls of Send or Recv by peer and tag. The zero value is ready to use.
type Tally struct{ records map[Key]*record }

// Key identifies a counter. For receives from any rank, Peer is Any.
type Key struct{ Peer, Tag int }

type record struct {
	count uint64 // number of calls so far
	// earlier holds the count at the end of each segment (the time between two collectives) with
	// calls.
	earlier []earlierCount
	limit   int // length at which earlier is pruned
}

type earlierCount struct{ after, count uint64 }

const minLimit = 32

// Count records a call after the given number of collectives, and returns the number of calls with
// this key so far. done is the number of completed collectives, which Before no longer accepts.
func (t *Tally) Count(k Key, after, done uint64) uint64 {
	r := t.records[k]
	if r == nil {
		if t.records == nil {
			t.records = map[Key]*record{}
		}
		r = &record{limit: minLimit}
		t.records[k] = r
	}
	r.count++
	if last := len(r.earlier) - 1; last >= 0 && r.earlier[last].after >= after {
		r.earlier[last].count = r.count
		return r.count
	}
	if len(r.earlier) >= r.limit {
		r.prune(done)
	}
	r.earlier = append(r.earlier, earlierCount{after, r.count})
	return r.count
}

// prune drops counts that Before no longer needs.
func (r *record) prune(done uint64) {
	keep := 0
	for keep+1 < len(r.earlier) && r.earlier[keep+1].after <= done {
		keep++
	}
	r.earlier = slices.Delete(r.earlier, 0, keep)
	r.limit = max(minLimit, 2*len(r.earlier))
}

// CallCount is the number of calls for a key.
type CallCount struct {
	Key
	Calls uint64
}

// Before returns the number of calls that preceded a collective, for each key with such calls,
// ordered by peer and tag. Collectives are numbered from 1, and this one must not have completed.
func (t *Tally) Before(collective uint64) []CallCount {
	var all []CallCount
	for k, r := range t.records {
		calls := uint64(0)
		for _, e := range r.earlier {
			if e.after < collective {
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

// Weight returns a message's weight, which it adds to the sender's balance and subtracts from the
// receiver's. If all balances add up to 0, all messages have been received, with an error
// probability of 2^-64.
func Weight(receiver, tag int) uint64 {
	x := uint64(receiver)<<32 ^ uint64(tag) + 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
