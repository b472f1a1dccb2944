package agreement

// maxProbes is the maximum number of positions in a ledger at which ranks compare digests in a
// round. With 15 probes, each round reduces the range of the first difference to a sixteenth.
const maxProbes = 15

// answer is a rank's digest of the events before Position in a ledger.
type answer struct {
	Ledger, Position, Digest uint64
	Known                    bool // false if the rank no longer keeps the digest
}

func (a answer) hasSamePosition(other answer) bool {
	return a.Ledger == other.Ledger && a.Position == other.Position
}

// positionResult combines the answers of all ranks for a position.
type positionResult struct {
	answer             // the first answer with a known digest, or else the first answer
	digestsDiffer bool // whether two known digests differ
	anyUnknown    bool // whether a rank does not know its digest
}

func (r *positionResult) add(a answer) {
	differs := r.Known && a.Known && r.Digest != a.Digest
	r.digestsDiffer = r.digestsDiffer || differs
	r.anyUnknown = r.anyUnknown || !a.Known
	if !r.Known {
		r.answer = a
	}
}

// positionsToProbe divides the range at up to maxProbes positions whose digests all ranks know.
func (search searchRange) positionsToProbe() []uint64 {
	sparseCount, denseStart, denseCount := search.knownPositions()
	knownCount := sparseCount + denseCount
	probeCount := min(knownCount, maxProbes)
	positions := make([]uint64, 0, probeCount)
	for i := uint64(1); i <= probeCount; i++ {
		n := scaleRoundingUp(knownCount+1, i, probeCount+1) // the n-th known position, from 1
		if n <= sparseCount {
			positions = append(positions, (search.first/search.stride+n)*search.stride)
		} else {
			positions = append(positions, denseStart+n-sparseCount-1)
		}
	}
	return positions
}

// knownPositions describes the positions in (first, last] whose digests all ranks know:
// sparseCount multiples of the stride below the floor, and denseCount positions from denseStart
// on.
func (search searchRange) knownPositions() (sparseCount, denseStart, denseCount uint64) {
	if sparseEnd := min(search.floor, search.last+1); sparseEnd > search.first+1 {
		sparseCount = (sparseEnd-1)/search.stride - search.first/search.stride
	}
	denseStart = max(search.floor, search.first+1)
	if denseStart <= search.last {
		denseCount = search.last - denseStart + 1
	}
	return sparseCount, denseStart, denseCount
}

// scaleRoundingUp returns n*i/parts rounded up. It avoids overflow for small i and parts.
func scaleRoundingUp(n, i, parts uint64) uint64 {
	whole, rest := n/parts, n%parts
	return whole*i + (rest*i+parts-1)/parts
}

// narrow reduces the range according to the result for one of its positions. If a rank no longer
// knows its digest, narrow leaves no positions to probe, because the rank may soon forget more
// digests.
func (search *searchRange) narrow(r positionResult) error {
	switch {
	case r.digestsDiffer:
		if r.Position <= search.last {
			search.last = r.Position - 1
			search.differs = true
		}
	case r.anyUnknown:
		search.floor, search.stride = maxPosition, maxPosition
	case r.Position > search.last:
		return protocolError("ledger %d is equal at a position after the first difference", search.id)
	default:
		search.first, search.firstDigest = r.Position, r.Digest
	}
	return nil
}
