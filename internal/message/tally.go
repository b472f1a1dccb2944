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
	// earlier holds the count at the end of each segment that contains calls. A segment is the
	// time between two collectives.
	earlier []earlierCount
	// limit is the length of earlier at which earlier is pruned.
	limit int
}

type earlierCount struct{ after, count uint64 }

// minLimit is the smallest value of record.limit.
const minLimit = 32

// Count records a call that was made after the given number of collectives, and returns the number
// of calls with this key so far. done is the number of completed collectives, for which Before
// must not be called again.
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

// prune drops counts that Before no longer needs. done is the number of completed collectives.
func (r *record) prune(done uint64) {
	keep := 0
	for keep+1 < len(r.earlier) && r.earlier[keep+1].after <= done {
		keep++
	}
	r.earlier = slices.Delete(r.earlier, 0, keep)
	r.limit = max(minLimit, 2*len(r.earlier))
}

// Counted is the number of calls for a key.
type Counted struct {
	Key
	Calls uint64
}

// Before returns the number of calls that were made before a collective, for each key that has
// such calls, ordered by peer and tag. Collectives are numbered from 1, and the given
// collective must not have completed.
func (t *Tally) Before(collective uint64) []Counted {
	var all []Counted
	for k, r := range t.records {
		calls := uint64(0)
		for _, m := range r.earlier {
			if m.after < collective {
				calls = m.count
			}
		}
		if calls > 0 {
			all = append(all, Counted{k, calls})
		}
	}
	slices.SortFunc(all, func(a, b Counted) int {
		return cmp.Or(cmp.Compare(a.Peer, b.Peer), cmp.Compare(a.Tag, b.Tag))
	})
	return all
}

// Weight returns the weight of a message, given its receiver and tag. A message adds its weight
// to the sender's balance and subtracts it from the receiver's. If all balances add up to 0,
// each rank has received as many messages with each tag as were sent to it, with an error
// probability of 2^-64.
func Weight(receiver, tag int) uint64 {
	x := uint64(receiver)<<32 ^ uint64(tag) + 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
