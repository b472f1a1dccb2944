package agreement

// maxProbes is the maximum number of positions in a ledger that one round probes. Probing 15
// positions reduces the interval to a sixteenth, with a payload of a few hundred bytes.
const maxProbes = 15

// answer is a rank's digest at one position of a ledger. Digest is 0 if Known is false.
type answer struct {
	Ledger, Position, Digest uint64
	Known                    bool
}

func (a answer) samePosition(o answer) bool {
	return a.Ledger == o.Ledger && a.Position == o.Position
}

// probeResult combines all ranks' answers for one position.
type probeResult struct {
	answer       // the first answer with a known digest, or any answer if there is none
	differs bool // whether any two known digests differ
	unknown bool // whether at least one rank does not know the digest at this position
}

func (r *probeResult) add(a answer) {
	r.differs = r.differs || r.Known && a.Known && r.Digest != a.Digest
	r.unknown = r.unknown || !a.Known
	if !r.Known {
		r.answer = a
	}
}

// probePositions returns up to maxProbes positions that divide the interval into parts of
// similar size. It returns only positions whose digest every rank knows (see candidates).
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

// candidates describes the positions after lo, up to and including top, whose digests every rank
// knows. coarse is the number of multiples of the stride below the floor. fine is the number of
// consecutive positions from consecutive on.
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

// narrow narrows the interval according to the result at one position. If a rank no longer knows a
// digest that it knew when the agreement began, narrow leaves no candidates to probe, because that
// rank may be dropping other digests too.
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
