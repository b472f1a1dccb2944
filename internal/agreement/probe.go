package agreement

// maxProbes limits the positions that one round probes in a ledger. 15 reduce the interval to a
// sixteenth.
const maxProbes = 15

// answer is a rank's digest at one position of a ledger.
type answer struct {
	Ledger, Position, Digest uint64
	Known                    bool
}

func (a answer) samePosition(o answer) bool {
	return a.Ledger == o.Ledger && a.Position == o.Position
}

// probeResult combines all ranks' answers for one position.
type probeResult struct {
	answer       // the first answer with a known digest, if there is one
	differs bool // two known digests differ
	unknown bool // some rank does not know the digest
}

func (r *probeResult) add(a answer) {
	r.differs = r.differs || r.Known && a.Known && r.Digest != a.Digest
	r.unknown = r.unknown || !a.Known
	if !r.Known {
		r.answer = a
	}
}

// probePositions returns up to maxProbes positions that divide the interval into parts of similar
// size. Every rank knows the digests at these positions.
func (span interval) probePositions() []uint64 {
	coarse, consecutive, fine := span.candidates()
	n := coarse + fine
	k := min(n, maxProbes)
	out := make([]uint64, 0, k)
	for i := uint64(1); i <= k; i++ {
		j := fractionUp(n+1, i, k+1) // index of the candidate, from 1 to n
		if j <= coarse {
			out = append(out, (span.first/span.stride+j)*span.stride)
		} else {
			out = append(out, consecutive+j-coarse-1)
		}
	}
	return out
}

// candidates describes the positions in (first, last] whose digests every rank knows: coarse
// multiples of the stride below the floor, and fine consecutive positions from consecutive on.
func (span interval) candidates() (coarse, consecutive, fine uint64) {
	if below := min(span.floor, span.last+1); below > span.first+1 {
		coarse = (below-1)/span.stride - span.first/span.stride
	}
	consecutive = max(span.floor, span.first+1)
	if consecutive <= span.last {
		fine = span.last - consecutive + 1
	}
	return coarse, consecutive, fine
}

// fractionUp returns n*i/parts rounded up, without overflow if i and parts are small.
func fractionUp(n, i, parts uint64) uint64 {
	whole, rest := n/parts, n%parts
	return whole*i + (rest*i+parts-1)/parts
}

// narrow narrows the interval by the result at one position. If a rank no longer knows a digest
// that it knew before, it may be dropping others too, so narrow leaves no positions to probe.
func (span *interval) narrow(r probeResult) error {
	switch {
	case r.differs:
		if r.Position <= span.last {
			span.last = r.Position - 1
			span.differs = true
		}
	case r.unknown:
		span.floor, span.stride = maxPosition, maxPosition
	case r.Position > span.last:
		return protocolError("ledger %d differs at a position before an equal position", span.id)
	default:
		span.first, span.firstDigest = r.Position, r.Digest
	}
	return nil
}
