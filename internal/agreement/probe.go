package agreement

// Ranks search for the first event at which their histories of a pool, called ledgers, differ. They
// compare digests (hashes) of the events before up to 15 positions per round, the probes. If the
// digests are equal at 70 and differ at 80, for example, the next round searches the events 70 to
// 79. Below a position called the floor, a rank keeps only the digests at multiples of a stride.

const maxProbes = 15 // per ledger and round; each round divides the range by 16

// answer is a rank's digest of the events before a position in a ledger. Its fields are exported
// for package binary.
type answer struct {
	Ledger   uint64 // id of the ledger
	Position uint64
	Digest   uint64 // 0 if not Known
	Known    bool   // false if the rank no longer keeps the digest
}

func (a answer) hasSamePosition(other answer) bool {
	return a.Ledger == other.Ledger && a.Position == other.Position
}

// positionResult combines the answers of all ranks for a position.
type positionResult struct {
	answer             // the first with a known digest, if there is one
	digestsDiffer bool // two known digests differ
	anyUnknown    bool // a rank no longer keeps its digest
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

// positionsToProbe returns up to maxProbes of the known positions, at equal distances.
func (search searchRange) positionsToProbe() []uint64 {
	sparseCount, denseStart, denseCount := search.knownPositions()
	sparseStart := (search.first/search.stride + 1) * search.stride
	knownCount := sparseCount + denseCount
	probeCount := min(knownCount, maxProbes)
	positions := make([]uint64, 0, probeCount)
	for i := uint64(1); i <= probeCount; i++ {
		// The probes divide the known positions, which have indexes from 0, into probeCount+1 parts.
		index := scaleRoundingUp(knownCount+1, i, probeCount+1) - 1
		isSparse := index < sparseCount
		if isSparse {
			positions = append(positions, sparseStart+index*search.stride)
		} else {
			positions = append(positions, denseStart+index-sparseCount)
		}
	}

	return positions
}

// knownPositions describes the positions after search.first whose digests all ranks know: sparse
// multiples of the stride below the floor, and then all positions from denseStart.
func (search searchRange) knownPositions() (sparseCount, denseStart, denseCount uint64) {
	start, end := search.first+1, search.last+1
	sparseEnd := min(search.floor, end)
	if sparseEnd > start {
		multiplesBelowStart := search.first / search.stride
		multiplesBelowEnd := (sparseEnd - 1) / search.stride
		sparseCount = multiplesBelowEnd - multiplesBelowStart
	}

	denseStart = max(search.floor, start)
	if denseStart < end {
		denseCount = end - denseStart
	}

	return sparseCount, denseStart, denseCount
}

// scaleRoundingUp returns n*i/parts, rounded up, without overflow if i and parts are small.
func scaleRoundingUp(n, i, parts uint64) uint64 {
	whole, rest := n/parts, n%parts
	return whole*i + (rest*i+parts-1)/parts
}

// narrow reduces the range by the result for a position. Results must be passed in the order of
// their positions. If a rank no longer keeps its digest, the search ends, because the rank may soon
// drop more digests.
func (search *searchRange) narrow(r positionResult) error {
	isInRange := r.Position <= search.last
	switch {
	case r.digestsDiffer && isInRange:
		search.last = r.Position - 1
		search.differs = true
	case r.digestsDiffer: // because of an earlier event, which is already known to differ
	case r.anyUnknown:
		// There is nothing to probe, because the range has no positions above this floor.
		search.floor, search.stride = maxPosition, maxPosition
	case !isInRange:
		return protocolError("ledger %d is equal at a position after the first difference", search.id)
	default: // the digests of all ranks are equal
		search.first, search.firstDigest = r.Position, r.Digest
	}

	return nil
}
