package agreement

// maxProbes is the maximum number of positions of a ledger in one round: 15 positions reduce the
// interval to a sixteenth, with a payload of a few hundred bytes.
const maxProbes = 15

// answer is a rank's digest of a ledger at one position, or 0 if it is not known.
type answer struct {
	Ledger, Position, Digest uint64
	Known                    bool
}

func (a answer) sameQuestion(o answer) bool {
	return a.Ledger == o.Ledger && a.Position == o.Position
}

// finding combines the answers of all ranks for one position: the first known digest, whether any
// two known digests differ, and whether some rank does not know its digest.
type finding struct {
	answer
	differs, unknown bool
}

func (f *finding) add(a answer) {
	f.differs = f.differs || f.Known && a.Known && f.Digest != a.Digest
	f.unknown = f.unknown || !a.Known
	if !f.Known {
		f.answer = a
	}
}

// question picks the positions that divide the interval into equal parts, among those whose digest
// every rank knows: multiples of the stride below the floor, and all from the floor on. It is empty
// if there are none left.
func (in interval) question() []uint64 {
	coarse, dense, fine := in.candidates()
	n := coarse + fine
	k := min(n, maxProbes)
	out := make([]uint64, 0, k)
	for i := uint64(1); i <= k; i++ {
		j := cut(n+1, i, k+1) // from 1 to n
		if j <= coarse {
			out = append(out, (in.lo/in.stride+j)*in.stride)
		} else {
			out = append(out, dense+j-coarse-1)
		}
	}
	return out
}

// candidates counts the positions after lo and up to top that can be asked for: coarse multiples of
// the stride, and fine consecutive ones from dense on.
func (in interval) candidates() (coarse, dense, fine uint64) {
	if below := min(in.floor, in.top+1); below > in.lo+1 {
		coarse = (below-1)/in.stride - in.lo/in.stride
	}
	dense = max(in.floor, in.lo+1)
	if dense <= in.top {
		fine = in.top - dense + 1
	}
	return coarse, dense, fine
}

// cut returns i/parts of n, rounded up, without overflow for the small i and parts in use.
func cut(n, i, parts uint64) uint64 {
	whole, rest := n/parts, n%parts
	return whole*i + (rest*i+parts-1)/parts
}

// narrow applies the finding at one position. If a rank no longer knows a digest that it knew when
// the agreement began, the search ends: another round would not find more.
func (in *interval) narrow(f finding) error {
	switch {
	case f.differs:
		if f.Position <= in.top {
			in.top = f.Position - 1
			in.differs = true
		}
	case f.unknown:
		in.floor, in.stride = maxPosition, maxPosition
	case f.Position > in.top:
		return protocolError("ledger %d differs at a position before an equal one", in.id)
	default:
		in.lo, in.loDigest = f.Position, f.Digest
	}
	return nil
}
