package agreement

import (
	"bytes"
	"slices"
)

// maxVariants is the number of different contributions that a report lists. A longer list would not
// explain more.
const maxVariants = 16

// variant is one contribution and its ranks in ascending order. The note is not compared; it is
// that of the lowest rank.
type variant struct {
	value, note []byte
	ranks       []int
}

// variants is a set of distinct contributions, ordered by their lowest rank. For contributions
// above maxVariants it keeps only the ranks.
type variants struct {
	list   []variant
	others []int
}

// add adds the contribution of a rank. Calls must be in ascending order of ranks.
func (v *variants) add(rank int, value, note []byte) {
	i := slices.IndexFunc(v.list, func(own variant) bool { return bytes.Equal(own.value, value) })
	switch {
	case i >= 0:
		v.list[i].ranks = append(v.list[i].ranks, rank)
	case len(v.list) == maxVariants:
		v.others = append(v.others, rank)
	default:
		// Cloned, since the exchange reuses payloads in its next call.
		v.list = append(v.list, variant{bytes.Clone(value), bytes.Clone(note), []int{rank}})
	}
}

// equal reports whether all ranks contributed the same.
func (v *variants) equal() bool { return len(v.list) <= 1 && len(v.others) == 0 }
