package agreement

// maxProbes is the maximum number of positions in a ledger at which ranks compare digests in a
// round. With 15 probes, each round reduces the range of the first difference to a sixteenth.
const maxProbes = 15

// answer is a rank's digest (hash) of the events before a position in a ledger, the history of a
// pool. Its fields are exported for package binary, which encodes them.
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
	answer             // the first answer with a known digest; without one, the first answer
	digestsDiffer bool // whether two known digests differ
	anyUnknown    bool // whether a rank no longer keeps its digest
}

// add adds the answer of another rank for the same position. The first answer can be added, too.
func (r *positionResult) add(a answer) {
	if r.Known && a.Known && r.Digest != a.Digest {
		r.digestsDiffer = true
	}

	if !a.Known {
		r.anyUnknown = true
	}

	if !r.Known {
		r.answer = a
	}
}

// positionsToProbe returns positions for the next round, at which ranks compare their digests. It
// selects up to maxProbes of the known positions, at equal distances.
func (search searchRange) positionsToProbe() []uint64 {
	sparseCount, denseStart, denseCount := search.knownPositions()
	knownCount := sparseCount + denseCount
	probeCount := min(knownCount, maxProbes)
	positions := make([]uint64, 0, probeCount)
	for i := uint64(1); i <= probeCount; i++ {
		// The i-th probe is the n-th known position. Both count from 1.
		n := scaleRoundingUp(knownCount+1, i, probeCount+1)
		if n <= sparseCount {
			positions = append(positions, (search.first/search.stride+n)*search.stride)
		} else {
			positions = append(positions, denseStart+n-sparseCount-1)
		}
	}

	return positions
}

// knownPositions describes the positions after search.first, up to search.last, whose digests all
// ranks know. Below search.floor, these are only the multiples of search.stride, and there are
// sparseCount of them. From the floor on, all positions are known. There are denseCount of them,
// and denseStart is the first.
func (search searchRange) knownPositions() (sparseCount, denseStart, denseCount uint64) {
	sparseEnd := min(search.floor, search.last+1)
	if sparseEnd > search.first+1 {
		sparseCount = (sparseEnd-1)/search.stride - search.first/search.stride
	}

	denseStart = max(search.floor, search.first+1)
	if denseStart <= search.last {
		denseCount = search.last - denseStart + 1
	}

	return sparseCount, denseStart, denseCount
}

// scaleRoundingUp returns n*i/parts rounded up. It does not overflow even if n is large, because i
// and parts are at most maxProbes+1.
func scaleRoundingUp(n, i, parts uint64) uint64 {
	whole, rest := n/parts, n%parts
	return whole*i + (rest*i+parts-1)/parts
}

// narrow reduces the range according to the result for one of its positions. Results must be passed
// in the order of their positions. If a rank no longer keeps its digest, the search ends without
// more probes, because the rank may soon drop more digests.
func (search *searchRange) narrow(r positionResult) error {
	switch {
	case r.digestsDiffer:
		isFirstDifference := r.Position <= search.last // later positions differ, too
		if isFirstDifference {
			search.last = r.Position - 1
			search.differs = true
		}
	case r.anyUnknown:
		// No position in the range is at or above this floor, or a multiple of this stride.
		search.floor, search.stride = maxPosition, maxPosition
	case r.Position > search.last:
		return protocolError("ledger %d is equal at a position after the first difference", search.id)
	default: // the digests of all ranks are equal
		search.first, search.firstDigest = r.Position, r.Digest
	}

	return nil
}
