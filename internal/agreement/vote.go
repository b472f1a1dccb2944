package agreement

import "symmem/internal/ledger"

// vote is a rank's state of one ledger in the first round.
type vote struct {
	ID uint64
	ledger.Snapshot
	Pending Pending
}

func (v vote) isValid() bool {
	isPowerOfTwo := v.Stride > 0 && v.Stride&(v.Stride-1) == 0
	return isPowerOfTwo && max(v.Agreed, v.Floor) <= v.Position &&
		max(v.Position, v.Stride) <= maxPosition
}

type combinedVote struct {
	// vote is the first rank's vote, with the greatest Floor and Stride of all ranks: every rank
	// still keeps the digests that they describe.
	vote
	lowestPosition, highestPosition uint64
	isIdentical                     bool // position and digest are the same on all ranks
	hasSamePrefix                   bool // the agreed prefix is the same on all ranks
	pending                         contributions
}

func newCombinedVote(first vote) combinedVote {
	return combinedVote{
		vote: first, lowestPosition: first.Position, highestPosition: first.Position,
		isIdentical: true, hasSamePrefix: true,
	}
}

func (c *combinedVote) add(rank int, v vote) {
	c.isIdentical = c.isIdentical && c.Position == v.Position && c.Digest == v.Digest
	c.hasSamePrefix = c.hasSamePrefix && c.Agreed == v.Agreed && c.AgreedDigest == v.AgreedDigest
	c.lowestPosition = min(c.lowestPosition, v.Position)
	c.highestPosition = max(c.highestPosition, v.Position)
	c.Floor, c.Stride = max(c.Floor, v.Floor), max(c.Stride, v.Stride)
	c.pending.add(rank, appendUint64s(nil, uint64(v.Pending.Count), v.Pending.Digest), nil)
}

// searchRange bounds the first difference of a ledger to positions in [first, last]. If differs is
// false, there may be none.
type searchRange struct {
	id                       uint64
	first, firstDigest, last uint64
	floor, stride            uint64 // see ledger.Snapshot
	differs                  bool
}

func (c *combinedVote) newSearch(mode Mode) (searchRange, error) {
	search := searchRange{
		id: c.ID, firstDigest: ledger.Empty, last: c.lowestPosition,
		floor: c.Floor, stride: c.Stride, differs: mode == ModeExact,
	}
	if c.hasSamePrefix {
		search.first, search.firstDigest = c.Agreed, c.AgreedDigest
	}

	if c.lowestPosition == c.highestPosition {
		// The digests at this position differ.
		if search.last <= search.first {
			return search, protocolError("ledger %d differs at or before the agreed position", c.ID)
		}

		search.last--
		search.differs = true
	}

	search.last = max(search.last, search.first)
	return search, nil
}
