package agreement

// Ranks search for the first event at which their histories of a pool, called ledgers, differ. For
// this, they compare digests (hashes) of the events before certain positions. Suppose that the
// ranks know only that the first difference is at one of the positions 0 to 159, the range of the
// search:
//
//   - In the first round, each rank sends its digests at 15 positions, the probes: 10, 20, ...,
//     150. A digest with its position is an answer.
//   - The digests are equal at 70, and differ at 80. So one of the events from 70 to 79 is the
//     first difference. This is the new range.
//   - In the second round, the probes are the 9 positions from 71 to 79. The digests are equal at
//     74 and differ at 75, so event 74 is the first difference.
//
// A rank keeps all its latest digests, but only some of the earlier ones: below a position called
// the floor, it keeps only those at multiples of the stride.

// maxProbes is the maximum number of probes for a ledger in a round. With 15 probes, each round
// reduces the range to a sixteenth.
const maxProbes = 15

// answer is a rank's digest of the events before a position in a ledger. Its fields are exported
// for package binary, which encodes them.
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
	answer             // the first answer with a known digest; without one, any answer
	digestsDiffer bool // whether two known digests differ
	anyUnknown    bool // whether a rank no longer keeps its digest
}

// add adds the answer of another rank for the same position. The first answer can be added, too.
func (r *positionResult) add(a answer) {
	areKnown := r.Known && a.Known
	if areKnown && r.Digest != a.Digest {
		r.digestsDiffer = true
	}

	if !a.Known {
		r.anyUnknown = true
	}

	if !r.Known {
		r.answer = a
	}
}

// positionsToProbe returns the probes for the next round. It selects up to maxProbes of the known
// positions, at equal distances.
func (search searchRange) positionsToProbe() []uint64 {
	sparseCount, denseStart, denseCount := search.knownPositions()
	knownCount := sparseCount + denseCount
	probeCount := min(knownCount, maxProbes)
	positions := make([]uint64, 0, probeCount)
	for i := uint64(1); i <= probeCount; i++ {
		// The i-th probe is the n-th known position. Both count from 1.
		n := scaleRoundingUp(knownCount+1, i, probeCount+1)
		isSparse := n <= sparseCount
		if isSparse { // then it is the n-th multiple of the stride after search.first
			positions = append(positions, (search.first/search.stride+n)*search.stride)
		} else {
			positions = append(positions, denseStart+n-sparseCount-1)
		}
	}

	return positions
}

// knownPositions describes the positions in the range, without the first, whose digests all ranks
// know. Below the floor, these are only the multiples of the stride, which are sparse. From the
// floor on, they are all positions. The first of these is denseStart.
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

// scaleRoundingUp returns n*i/parts, rounded up. It does not overflow even if n is large, because i
// and parts are at most maxProbes+1.
func scaleRoundingUp(n, i, parts uint64) uint64 {
	whole, rest := n/parts, n%parts
	return whole*i + (rest*i+parts-1)/parts
}

// narrow reduces the range by the result for one of its positions. Results must be passed in the
// order of their positions.
//
// If a rank no longer keeps its digest, the search ends without more probes, because the rank may
// soon drop more digests.
func (search *searchRange) narrow(r positionResult) error {
	isInRange := r.Position <= search.last
	switch {
	case r.digestsDiffer && isInRange:
		search.last = r.Position - 1
		search.differs = true
	case r.digestsDiffer: // because an earlier event differs
	case r.anyUnknown:
		// No position in the range is at or above this floor, or a multiple of this stride.
		search.floor, search.stride = maxPosition, maxPosition
	case !isInRange:
		return protocolError("ledger %d is equal at a position after the first difference", search.id)
	default: // the digests of all ranks are equal
		search.first, search.firstDigest = r.Position, r.Digest
	}

	return nil
}
