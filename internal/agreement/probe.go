package agreement

import (
	"encoding/binary"
	"slices"
)

// maxProbes is how many positions of a ledger a round asks for: 15 cut what is left to a
// sixteenth, for a payload of a few hundred bytes.
const maxProbes = 15

// probe asks for the digests of one ledger at some positions, and holds the answers.
type probe struct {
	id      uint64
	answers []answer
}

// answer merges the digests at one position. It keeps the first known digest, whether any two known
// ones differ, and whether some rank does not know: all three merge in any order.
type answer struct {
	position, digest        uint64
	known, differs, unknown bool
}

func (p probe) sameQuestion(o probe) bool {
	return p.id == o.id && slices.EqualFunc(p.answers, o.answers, func(a, b answer) bool {
		return a.position == b.position
	})
}

func (p probe) merge(o probe) {
	for i := range p.answers {
		p.answers[i].merge(o.answers[i])
	}
}

func (a *answer) merge(o answer) {
	a.differs = a.differs || o.differs || a.known && o.known && a.digest != o.digest
	a.unknown = a.unknown || o.unknown
	switch {
	case a.known && o.known:
		a.digest = min(a.digest, o.digest)
	case o.known:
		a.known, a.digest = true, o.digest
	}
}

// question picks the positions that cut what is left into equal parts. Only positions count whose
// digest every rank knows: multiples of the stride below the floor, and all from the floor on. It
// is empty if there is nothing left to ask.
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

// narrow applies the merged answers. It reports whether the search can go on: it cannot where a
// rank has forgotten what it still knew when the agreement began.
func (in *interval) narrow(p probe) (bool, error) {
	more := true
	for _, a := range p.answers {
		switch {
		case a.differs:
			if a.position <= in.top {
				in.top = a.position - 1
				in.differs = true
			}
		case a.unknown:
			more = false
		case a.position > in.top:
			return false, protocolError("ledger %d differs at a position before an equal one", in.id)
		default:
			in.lo, in.loDigest = a.position, a.digest
		}
	}
	return more, nil
}

func (p probe) append(b []byte) []byte {
	b = binary.AppendUvarint(b, p.id)
	b = append(b, byte(len(p.answers)))
	for _, a := range p.answers {
		b = binary.AppendUvarint(b, a.position)
		b = appendWords(b, a.digest)
		b = appendBool(b, a.known)
		b = appendBool(b, a.differs)
		b = appendBool(b, a.unknown)
	}
	return b
}

func (r *reader) probes() []probe {
	const what = "probe"
	n := r.count(MaxLedgers, what)
	out := make([]probe, 0, n)
	for range n {
		p := probe{id: r.uvarint(what)}
		for range r.count(maxProbes, what) {
			a := answer{position: r.uvarint(what), digest: r.u64(what)}
			a.known, a.differs, a.unknown = r.bool(what), r.bool(what), r.bool(what)
			if !a.known && (!a.unknown || a.differs || a.digest != 0) {
				r.fail(what)
			}
			p.answers = append(p.answers, a)
		}
		out = append(out, p)
	}
	return out
}
