package agreement

// With 15 probes, each round reduces the range of the first difference to a sixteenth.
const maxProbes = 15

// answer is a rank's digest of the events before Position.
type answer struct {
	Ledger, Position, Digest uint64
	Known                    bool // false if the digest is no longer kept
}

func (a answer) hasSamePosition(o answer) bool {
	return a.Ledger == o.Ledger && a.Position == o.Position
}

type positionResult struct {
	answer        // the first answer with a known digest, or the first answer
	digestsDiffer bool
	anyUnknown    bool
}

func (r *positionResult) add(a answer) {
	r.digestsDiffer = r.digestsDiffer || r.Known && a.Known && r.Digest != a.Digest
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
		n := scaleRoundingUp(knownCount+1, i, probeCount+1) // from 1 to known
		if n <= sparseCount {
			positions = append(positions, (search.first/search.stride+n)*search.stride)
		} else {
			positions = append(positions, denseStart+n-sparseCount-1)
		}
	}
	return positions
}

// knownPositions describes the positions in (first, last] whose digests all ranks know: sparseCount
// multiples of the stride below the floor, and denseCount positions from denseStart on.
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

// narrow leaves no positions to probe if a rank no longer knows a digest: it may soon forget more.
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
