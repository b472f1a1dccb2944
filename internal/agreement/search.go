package agreement

import "symmem/internal/ledger"

const maxProbes = 15 // per ledger and round

// searchRange contains the first different event of a ledger (the history of a pool), if any. In
// each round, ranks probe some positions: they compare the digests of all events before a position.
// If the digests are equal at 70 and differ at 80, for example, the next range is 70 to 79.
type searchRange struct {
	id          uint64 // of the ledger
	first, last uint64 // inclusive; all ranks have the same events before first
	firstDigest uint64 // of the events before first
	differs     bool   // some event in the range is known to differ
	ended       bool   // do not probe again

	// Below floor, some ranks keep digests only at multiples of stride.
	floor, stride uint64
}

// newSearch returns a search of the events after the agreed prefix.
func (c *combinedVote) newSearch(mode Mode) (searchRange, error) {
	search := searchRange{
		id: c.ID, firstDigest: ledger.Empty, last: c.lowestPosition,
		floor: c.Floor, stride: c.Stride, differs: mode == ModeExact, // ModePrefix ignores lengths
	}
	if c.hasSameAgreed {
		search.first = c.Agreed
		search.firstDigest = c.AgreedDigest
	}

	haveSameLength := c.lowestPosition == c.highestPosition
	if haveSameLength { // so the digests differ
		if search.last <= search.first {
			return search, protocolError("ledger %d differs at or before the agreed position", c.ID)
		}

		search.last--
		search.differs = true
	}

	return search, nil
}

// sidePosition returns the position of the difference or, if it is not found, the end of the range.
func (search searchRange) sidePosition() uint64 {
	if search.isFound() {
		return search.first
	}

	return search.last + 1
}

func (search searchRange) isFound() bool { return search.first == search.last }

// positionsToProbe returns up to maxProbes of the digestPositions, at equal distances. Of 31
// positions, for example, it returns the second, the fourth and so on up to the 30th.
func (search searchRange) positionsToProbe() []uint64 {
	if search.ended {
		return nil
	}

	available := search.digestPositions()
	availableCount := available.sparseCount + available.denseCount
	probeCount := min(availableCount, maxProbes)
	positions := make([]uint64, 0, probeCount)
	for probe := uint64(1); probe <= probeCount; probe++ {
		ordinal := scaleRoundingUp(availableCount+1, probe, probeCount+1) // from 1
		positions = append(positions, available.at(ordinal-1))
	}

	return positions
}

// positionList lists multiples of a stride, followed by consecutive positions.
type positionList struct {
	sparseStart, stride, sparseCount uint64
	denseStart, denseCount           uint64
}

func (p positionList) at(index uint64) uint64 {
	if index < p.sparseCount {
		return p.sparseStart + index*p.stride
	}

	return p.denseStart + index - p.sparseCount
}

// digestPositions lists the positions after first, up to last, at which all ranks keep digests.
func (search searchRange) digestPositions() positionList {
	end := search.last + 1
	list := positionList{
		sparseStart: (search.first/search.stride + 1) * search.stride,
		stride:      search.stride,
		denseStart:  max(search.floor, search.first+1),
	}
	sparseEnd := min(search.floor, end)
	if list.sparseStart < sparseEnd {
		list.sparseCount = (sparseEnd-1-list.sparseStart)/search.stride + 1
	}

	if list.denseStart < end {
		list.denseCount = end - list.denseStart
	}

	return list
}

// scaleRoundingUp returns n*numerator/denominator, rounded up. The product numerator*denominator
// must not overflow.
func scaleRoundingUp(n, numerator, denominator uint64) uint64 {
	whole, rest := n/denominator, n%denominator
	return whole*numerator + (rest*numerator+denominator-1)/denominator
}

// answer is a rank's digest of the events before a position. Its fields are exported for package
// binary.
type answer struct {
	Ledger   uint64 // id of the ledger
	Position uint64
	Digest   uint64 // 0 unless Kept
	Kept     bool   // the rank still keeps the digest
}

func (a answer) hasSamePosition(other answer) bool {
	return a.Ledger == other.Ledger && a.Position == other.Position
}

// positionResult combines the answers of all ranks for a position.
type positionResult struct {
	answer             // the first with a Kept digest, or the last answer
	digestsDiffer bool // two Kept digests differ
	anyNotKept    bool
}

func newPositionResult(first answer) positionResult {
	return positionResult{answer: first, anyNotKept: !first.Kept}
}

func (r *positionResult) add(a answer) {
	if r.Kept && a.Kept && r.Digest != a.Digest {
		r.digestsDiffer = true
	}

	if !a.Kept {
		r.anyNotKept = true
	}

	if !r.Kept {
		r.answer = a
	}
}

// narrow reduces the range by the result for a position. Results must come in order of positions.
func (search *searchRange) narrow(r positionResult) error {
	isInRange := r.Position <= search.last
	switch {
	case r.digestsDiffer && isInRange:
		search.last = r.Position - 1
		search.differs = true
	case r.digestsDiffer: // after the first difference
	case r.anyNotKept:
		search.ended = true // a rank has dropped a digest, and may soon drop more
	case !isInRange:
		return protocolError("ledger %d is equal at a position after the first difference", search.id)
	default: // the digests of all ranks are equal
		search.first = r.Position
		search.firstDigest = r.Digest
	}

	return nil
}
