package agreement

import "symmem/internal/ledger"

const maxProbes = 15 // per ledger and round

// searchRange is the state of a search for the first event that differs in a ledger, the history of
// a pool. In each round, ranks probe some positions: they compare the digests of all events before
// a position. If the digests are equal at 70 and differ at 80, for example, the next round searches
// the events 70 to 79.
type searchRange struct {
	id          uint64 // of the ledger
	first, last uint64 // the events that may be the first difference
	firstDigest uint64 // of the events before first, on all ranks
	differs     bool   // if false, all events may be equal
	ended       bool   // do not probe again

	// Below floor, some ranks keep digests only at multiples of stride.
	floor, stride uint64
}

// newSearch returns a search in the events that the votes do not show to be equal.
func (c *combinedVote) newSearch(mode Mode) (searchRange, error) {
	search := searchRange{
		id: c.ID, firstDigest: ledger.Empty, last: c.lowestPosition,
		floor: c.Floor, stride: c.Stride, differs: mode == ModeExact,
	}
	if c.hasSamePrefix {
		search.first = c.Agreed
		search.firstDigest = c.AgreedDigest
	}

	haveSameLength := c.lowestPosition == c.highestPosition
	if haveSameLength { // and different digests
		if search.last <= search.first {
			return search, protocolError("ledger %d differs at or before the agreed position", c.ID)
		}

		search.last--
		search.differs = true
	}

	search.last = max(search.last, search.first)
	return search, nil
}

// sidePosition returns the position of the difference or, if it is not known, the end of the range.
func (search searchRange) sidePosition() uint64 {
	if search.isPositionKnown() {
		return search.first
	}

	return search.last + 1
}

func (search searchRange) isPositionKnown() bool { return search.first == search.last }

// positionsToProbe returns up to maxProbes of the known positions, at equal distances. Of 31
// positions, for example, it returns the second, the fourth and so on up to the 30th.
func (search searchRange) positionsToProbe() []uint64 {
	if search.ended {
		return nil
	}

	known := search.knownPositions()
	knownCount := known.sparseCount + known.denseCount
	probeCount := min(knownCount, maxProbes)
	positions := make([]uint64, 0, probeCount)
	for probe := uint64(1); probe <= probeCount; probe++ {
		ordinal := scaleRoundingUp(knownCount+1, probe, probeCount+1) // from 1
		positions = append(positions, known.at(ordinal-1))
	}

	return positions
}

// knownPositions are multiples of a stride, followed by consecutive positions.
type knownPositions struct {
	sparseStart, stride, sparseCount uint64
	denseStart, denseCount           uint64
}

// at returns the position with an index, from 0.
func (p knownPositions) at(index uint64) uint64 {
	if index < p.sparseCount {
		return p.sparseStart + index*p.stride
	}

	return p.denseStart + index - p.sparseCount
}

// knownPositions returns the positions after first, up to last, at which all ranks keep digests.
func (search searchRange) knownPositions() knownPositions {
	end := search.last + 1
	known := knownPositions{
		sparseStart: (search.first/search.stride + 1) * search.stride,
		stride:      search.stride,
		denseStart:  max(search.floor, search.first+1),
	}
	sparseEnd := min(search.floor, end)
	if known.sparseStart < sparseEnd {
		known.sparseCount = (sparseEnd-1-known.sparseStart)/search.stride + 1
	}

	if known.denseStart < end {
		known.denseCount = end - known.denseStart
	}

	return known
}

// scaleRoundingUp returns n*i/parts, rounded up. The product of i and parts must not overflow.
func scaleRoundingUp(n, i, parts uint64) uint64 {
	whole, rest := n/parts, n%parts
	return whole*i + (rest*i+parts-1)/parts
}

// answer is a rank's digest of the events before a position. Its fields are exported for package
// binary.
type answer struct {
	Ledger   uint64 // id of the ledger
	Position uint64
	Digest   uint64 // 0 if the rank no longer keeps it
	Known    bool   // the rank keeps the digest
}

func (a answer) hasSamePosition(other answer) bool {
	return a.Ledger == other.Ledger && a.Position == other.Position
}

// positionResult combines the answers of all ranks for a position.
type positionResult struct {
	answer             // the first that is Known, if any
	digestsDiffer bool // two Known answers have different digests
	anyUnknown    bool // some answer is not Known
}

func newPositionResult(first answer) positionResult {
	return positionResult{answer: first, anyUnknown: !first.Known}
}

func (r *positionResult) add(a answer) {
	areBothKnown := r.Known && a.Known
	if areBothKnown && r.Digest != a.Digest {
		r.digestsDiffer = true
	}

	if !a.Known {
		r.anyUnknown = true
	}

	if !r.Known {
		r.answer = a
	}
}

// narrow reduces the range by the result for a position. Call it in the order of positions.
func (search *searchRange) narrow(r positionResult) error {
	isInRange := r.Position <= search.last // no earlier result has shown a difference
	switch {
	case r.digestsDiffer && isInRange:
		search.last = r.Position - 1
		search.differs = true
	case r.digestsDiffer:
	case r.anyUnknown:
		search.ended = true // a rank has dropped a digest, and may soon drop more
	case !isInRange:
		return protocolError("ledger %d is equal at a position after the first difference", search.id)
	default: // the digests of all ranks are equal
		search.first = r.Position
		search.firstDigest = r.Digest
	}

	return nil
}
