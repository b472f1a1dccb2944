package agreement

import (
	"bytes"
	"fmt"
	"slices"
)

const maxContributions = 16

// contribution is a value and, in ascending order, the ranks that sent it. detail is that of the
// lowest rank and is not compared.
type contribution struct {
	value, detail []byte
	ranks         []int
}

// contributions holds the distinct values by their lowest rank. otherRanks lists ranks whose values
// do not fit into list.
type contributions struct {
	list       []contribution
	otherRanks []int
}

// add must be called in ascending order of ranks.
func (v *contributions) add(rank int, value, detail []byte) {
	i := slices.IndexFunc(v.list, func(w contribution) bool { return bytes.Equal(w.value, value) })
	switch {
	case i >= 0:
		v.list[i].ranks = append(v.list[i].ranks, rank)
	case len(v.list) == maxContributions:
		v.otherRanks = append(v.otherRanks, rank)
	default:
		// The next exchange may reuse the payloads.
		v.list = append(v.list, contribution{bytes.Clone(value), bytes.Clone(detail), []int{rank}})
	}
}

func (v *contributions) areEqual() bool { return len(v.list) <= 1 && len(v.otherRanks) == 0 }

// OwnVariant returns this rank's side of a divergence, at positions first to last, that other ranks
// have found without it.
func (c Config) OwnVariant(kind Kind, id, first, last uint64) (Variant, error) {
	v := Variant{Ranks: []int{c.Rank}}
	var err error
	switch kind {
	case KindTag:
		v.Text = c.Tag
	case KindLedgers:
		var ids []byte
		for _, l := range c.Ledgers {
			ids = appendUint64s(ids, l.ID)
		}

		v.Text, err = c.Names.describePools(ids)
	case KindCollective:
		v.Site = string(c.detail())
		v.Text, err = c.Names.describeCall(encodeOptionalCall(c.Call))
	case KindPlacement:
		i := slices.IndexFunc(c.Ledgers, func(l Ledger) bool { return l.ID == id })
		if i < 0 {
			return v, fmt.Errorf("unknown ledger %d", id)
		}

		source := snapshotSource{c.Ledgers[i].Source, c.Ledgers[i].Source.Snapshot().Position}
		side := encodeEventSide(source, first)
		if last > first {
			side = encodeDigestSide(source, last+1)
		}

		v, err = decodeSide(contribution{value: side, ranks: v.Ranks})
	default:
		err = fmt.Errorf("no own side of kind %v", kind)
	}

	return v, err
}
