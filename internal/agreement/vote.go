package agreement

import "symmem/internal/ledger"

// vote is the state of one ledger, which a rank sends in the first round.
type vote struct {
	ID uint64
	ledger.Snapshot
	Pending Pending
}

func (v vote) valid() bool {
	stride := v.Stride > 0 && v.Stride&(v.Stride-1) == 0
	return stride && max(v.Agreed, v.Floor) <= v.Position && max(v.Position, v.Stride) <= maxPosition
}

// tally combines all ranks' votes on one ledger.
type tally struct {
	// vote is the first rank's vote, but with the greatest Floor and Stride of any rank, because
	// every rank keeps that part of the history.
	vote
	low, high  uint64 // smallest and greatest positions
	same       bool   // position and digest are the same on all ranks
	agreedSame bool   // the agreed prefix is the same on all ranks
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

// interval bounds the position of the first difference in a ledger to [first, last]. While differs
// is false, no difference has been found; if all digests at last are the same, there is none.
type interval struct {
	id, first, firstDigest, last uint64
	floor, stride                uint64
	differs                      bool
}

func (t *tally) interval(mode Mode) (interval, error) {
	span := interval{
		id: t.ID, firstDigest: ledger.Empty, last: t.low,
		floor: t.Floor, stride: t.Stride, differs: mode == Exact,
	}
	if t.agreedSame {
		span.first, span.firstDigest = t.Agreed, t.AgreedDigest
	}
	if t.low == t.high {
		// All ranks are at the same position but have different digests.
		if span.last <= span.first {
			return span, protocolError("ledger %d differs at or before the agreed position", t.ID)
		}
		span.last--
		span.differs = true
	}
	// The events before first are the same.
	span.last = max(span.last, span.first)
	return span, nil
}
