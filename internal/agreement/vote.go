package agreement

import "symmem/internal/ledger"

// vote is what a rank says of one ledger in the first round.
type vote struct {
	ID uint64
	ledger.Snapshot
	Pending Pending
}

// valid reports whether a ledger can be in such a state.
func (v vote) valid() bool {
	stride := v.Stride > 0 && v.Stride&(v.Stride-1) == 0
	return stride && max(v.Agreed, v.Floor) <= v.Position && max(v.Position, v.Stride) <= maxPosition
}

// tally is what all ranks say of one ledger.
type tally struct {
	// vote is that of the first rank, but has the greatest floor and stride of all: what every rank
	// still keeps.
	vote
	low, high  uint64 // least and greatest position
	same       bool   // position and digest are the same on all ranks
	agreedSame bool   // so are the agreed prefix and its digest
	pending    variants
}

func newTally(first vote) tally {
	return tally{vote: first, low: first.Position, high: first.Position, same: true, agreedSame: true}
}

func (t *tally) add(rank int, v vote) {
	t.same = t.same && t.Position == v.Position && t.Digest == v.Digest
	t.agreedSame = t.agreedSame && t.Agreed == v.Agreed && t.AgreedDigest == v.AgreedDigest
	t.low, t.high = min(t.low, v.Position), max(t.high, v.Position)
	t.Floor, t.Stride = max(t.Floor, v.Floor), max(t.Stride, v.Stride)
	t.pending.add(rank, appendWords(nil, uint64(v.Pending.Count), v.Pending.Digest), nil)
}

// interval is where a ledger may first differ: at a position from lo to top, both included. If
// differs is not set, no difference has been seen and top may as well be the end of what is
// compared.
type interval struct {
	id, lo, loDigest, top uint64
	floor, stride         uint64
	differs               bool
}

// interval turns what is said of an undecided ledger into the positions to search.
func (t *tally) interval(mode Mode) (interval, error) {
	in := interval{
		id: t.ID, loDigest: ledger.Empty, top: t.low,
		floor: t.Floor, stride: t.Stride, differs: mode == Exact,
	}
	if t.agreedSame {
		in.lo, in.loDigest = t.Agreed, t.AgreedDigest
	}
	if t.low == t.high {
		// Everybody is at the same position and the digests there differ.
		if in.top <= in.lo {
			return in, protocolError("ledger %d differs at or before what was agreed", t.ID)
		}
		in.top--
		in.differs = true
	}
	// Equal digests at the end of the agreed prefix mean that everything before it is equal.
	in.top = max(in.top, in.lo)
	return in, nil
}
