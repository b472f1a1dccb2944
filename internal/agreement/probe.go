package agreement

// Ranks search for the first difference of their ledgers, the histories of a pool. In each round,
// they probe up to 15 positions: they compare the digests (hashes) of all events before a position.
// If the digests are equal at 70 and differ at 80, for example, the next round searches the events
// 70 to 79. Below a position called the floor, ranks keep digests only at multiples of a stride.

const maxProbes = 15 // per ledger and round; they divide a range into 16 parts

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
	answer             // first answer that is Known, if any
	digestsDiffer bool // two Known answers have different digests
	anyUnknown    bool // some answer is not Known
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
	known := search.knownPositions()
	knownCount := known.sparseCount + known.denseCount
	probeCount := min(knownCount, maxProbes)
	positions := make([]uint64, 0, probeCount)
	for probe := uint64(1); probe <= probeCount; probe++ {
		// The probes divide the known positions into probeCount+1 parts.
		ordinal := scaleRoundingUp(knownCount+1, probe, probeCount+1) // from 1
		positions = append(positions, known.at(ordinal-1))
	}

	return positions
}

// probePositions are positions at multiples of a stride, followed by consecutive positions.
type probePositions struct {
	sparseStart, stride, sparseCount uint64
	denseStart, denseCount           uint64
}

// at returns the position with an index, from 0.
func (p probePositions) at(index uint64) uint64 {
	if index < p.sparseCount {
		return p.sparseStart + index*p.stride
	}

	return p.denseStart + index - p.sparseCount
}

// knownPositions returns the positions in the range, except for search.first, at which all ranks
// keep digests.
func (search searchRange) knownPositions() probePositions {
	start, end := search.first+1, search.last+1
	multiplesBelowStart := search.first / search.stride
	known := probePositions{
		sparseStart: (multiplesBelowStart + 1) * search.stride,
		stride:      search.stride,
		denseStart:  max(search.floor, start),
	}
	sparseEnd := min(search.floor, end)
	if start < sparseEnd {
		multiplesBelowEnd := (sparseEnd - 1) / search.stride
		known.sparseCount = multiplesBelowEnd - multiplesBelowStart
	}

	if known.denseStart < end {
		known.denseCount = end - known.denseStart
	}

	return known
}

// scaleRoundingUp returns n*i/parts, rounded up, without overflow if i and parts are small.
func scaleRoundingUp(n, i, parts uint64) uint64 {
	whole, rest := n/parts, n%parts
	return whole*i + (rest*i+parts-1)/parts
}

// narrow reduces the range by the result for a position. Call it in the order of positions. If a
// rank no longer keeps the digest at the position, the search ends, because the rank may soon drop
// more digests.
func (search *searchRange) narrow(r positionResult) error {
	isInRange := r.Position <= search.last
	switch {
	case r.digestsDiffer && isInRange:
		search.last = r.Position - 1
		search.differs = true
	case r.digestsDiffer: // an earlier result has already shown the difference
	case r.anyUnknown:
		// End the search: with this floor and stride, the range has no known positions.
		search.floor, search.stride = maxPosition, maxPosition
	case !isInRange:
		return protocolError("ledger %d is equal at a position after the first difference", search.id)
	default: // the digests of all ranks are equal
		search.first, search.firstDigest = r.Position, r.Digest
	}

	return nil
}
