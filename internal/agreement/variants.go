package agreement

import (
	"bytes"
	"slices"
)

// maxVariants is how many different contributions a report lists; a larger group in which nothing
// fits anything is not understood better for seeing them all.
const maxVariants = 16

// variant is one contribution and the ranks that made it, ascending. The note rides along without
// being compared: it is that of the lowest rank.
type variant struct {
	value, note []byte
	ranks       []int
}

// variants is a set of distinct contributions, ordered by their lowest rank. What exceeds
// maxVariants is kept as ranks alone.
type variants struct {
	list   []variant
	others []int
}

// add adds the contribution of a rank. Ranks come in ascending order.
func (v *variants) add(rank int, value, note []byte) {
	i := slices.IndexFunc(v.list, func(own variant) bool { return bytes.Equal(own.value, value) })
	switch {
	case i >= 0:
		v.list[i].ranks = append(v.list[i].ranks, rank)
	case len(v.list) == maxVariants:
		v.others = append(v.others, rank)
	default:
		// The payload is the exchange's again at its next call.
		v.list = append(v.list, variant{bytes.Clone(value), bytes.Clone(note), []int{rank}})
	}
}

// equal reports whether all ranks contributed the same.
func (v *variants) equal() bool { return len(v.list) <= 1 && len(v.others) == 0 }
