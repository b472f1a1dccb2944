package agreement

import (
	"bytes"
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
