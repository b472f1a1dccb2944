package agreement

// maxProbes is the maximum number of positions in a ledger that one round probes. 15 positions
// reduce the interval to a sixteenth.
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
func (in interval) probePositions() []uint64 {
	coarse, consecutive, fine := in.candidates()
	n := coarse + fine
	k := min(n, maxProbes)
	out := make([]uint64, 0, k)
	for i := uint64(1); i <= k; i++ {
		j := fractionUp(n+1, i, k+1) // index of the candidate, from 1 to n
		if j <= coarse {
			out = append(out, (in.lo/in.stride+j)*in.stride)
		} else {
			out = append(out, consecutive+j-coarse-1)
		}
	}
	return out
}

// candidates describes the positions in (lo, top] whose digests every rank knows: coarse multiples
// of the stride below the floor, and fine consecutive positions from consecutive on.
func (in interval) candidates() (coarse, consecutive, fine uint64) {
	if below := min(in.floor, in.top+1); below > in.lo+1 {
		coarse = (below-1)/in.stride - in.lo/in.stride
	}
	consecutive = max(in.floor, in.lo+1)
	if consecutive <= in.top {
		fine = in.top - consecutive + 1
	}
	return coarse, consecutive, fine
}

// fractionUp returns n*i/parts rounded up. It does not overflow if i and parts are small.
func fractionUp(n, i, parts uint64) uint64 {
	whole, rest := n/parts, n%parts
	return whole*i + (rest*i+parts-1)/parts
}

// narrow narrows the interval by the result at one position. If a rank no longer knows a digest
// that it knew before, it may be dropping others too, so narrow leaves no positions to probe.
func (in *interval) narrow(r probeResult) error {
	switch {
	case r.differs:
		if r.Position <= in.top {
			in.top = r.Position - 1
			in.differs = true
		}
	case r.unknown:
		in.floor, in.stride = maxPosition, maxPosition
	case r.Position > in.top:
		return protocolError("ledger %d differs at a position before an equal position", in.id)
	default:
		in.lo, in.loDigest = r.Position, r.Digest
	}
	return nil
}
