package agreement

import (
	"encoding/binary"

	"symmem/internal/ledger"
)

// vote is what the first round says of one ledger. For one rank low, high and the position are the
// same; merged, they span the group.
type vote struct {
	id        uint64
	low, high uint64 // least and greatest position
	digest    uint64 // of the whole history
	same      bool   // position and digest are the same on all ranks

	agreed, agreedDigest uint64
	agreedSame           bool // so are the agreed prefix and its digest

	floor, stride uint64 // greatest: what every rank still keeps
	pending       variants
}

// newVote makes the vote of one rank. In a prefix comparison pending segments do not count.
func newVote(rank int, mode Mode, l Ledger, s ledger.Snapshot) vote {
	var pending []byte
	if mode == Exact {
		pending = appendWords(nil, uint64(l.Pending.Count), l.Pending.Digest)
	}
	return vote{
		id:  l.ID,
		low: s.Position, high: s.Position,
		digest: s.Digest, same: true,
		agreed: s.Agreed, agreedDigest: s.AgreedDigest, agreedSame: true,
		floor: s.Floor, stride: s.Stride,
		pending: oneVariant(rank, pending, nil),
	}
}

func (v *vote) merge(o vote) {
	v.same = v.same && o.same && v.low == o.low && v.digest == o.digest
	v.agreedSame = v.agreedSame && o.agreedSame &&
		v.agreed == o.agreed && v.agreedDigest == o.agreedDigest
	// What is not the same must still merge to the same bytes in any order.
	v.digest = min(v.digest, o.digest)
	v.agreed = min(v.agreed, o.agreed)
	v.agreedDigest = min(v.agreedDigest, o.agreedDigest)
	v.low, v.high = min(v.low, o.low), max(v.high, o.high)
	v.floor, v.stride = max(v.floor, o.floor), max(v.stride, o.stride)
	v.pending = v.pending.merge(o.pending)
}

// interval is where a ledger may first differ: at a position from lo to top, both included. If
// differs is not set, no difference has been seen and top may as well be the end of what is
// compared.
type interval struct {
	id, lo, loDigest, top uint64
	floor, stride         uint64
	differs               bool
}

// interval turns the merged vote of an undecided ledger into the positions to search.
func (v vote) interval(mode Mode) (interval, error) {
	in := interval{
		id: v.id, loDigest: ledger.Empty, top: v.low,
		floor: v.floor, stride: v.stride, differs: mode == Exact,
	}
	if v.agreedSame {
		in.lo, in.loDigest = v.agreed, v.agreedDigest
	}
	if v.low == v.high {
		// Everybody is at the same position and the digests there differ.
		if in.top <= in.lo {
			return in, protocolError("ledger %d differs at or before what was agreed", v.id)
		}
		in.top--
		in.differs = true
	}
	// Equal digests at the end of the agreed prefix mean that everything before it is equal.
	in.top = max(in.top, in.lo)
	return in, nil
}

func (v vote) append(b []byte) []byte {
	for _, word := range []uint64{v.id, v.low, v.high, v.agreed, v.floor, v.stride} {
		b = binary.AppendUvarint(b, word)
	}
	b = appendWords(b, v.digest, v.agreedDigest)
	b = appendBool(b, v.same)
	b = appendBool(b, v.agreedSame)
	return v.pending.append(b)
}

func (r *reader) vote(ranks RankSet) vote {
	const what = "vote"
	v := vote{
		id: r.uvarint(what), low: r.uvarint(what), high: r.uvarint(what),
		agreed: r.uvarint(what), floor: r.uvarint(what), stride: r.uvarint(what),
	}
	v.digest, v.agreedDigest = r.u64(what), r.u64(what)
	v.same, v.agreedSame = r.bool(what), r.bool(what)
	v.pending = r.variants(ranks, "pending segments")
	ordered := v.agreed <= v.low && v.low <= v.high && v.floor <= v.high
	stride := v.stride > 0 && v.stride&(v.stride-1) == 0
	if !ordered || !stride || max(v.high, v.stride) > maxPosition || v.same && v.low != v.high {
		r.fail(what)
	}
	return v
}
