package agreement

import (
	"bytes"
	"slices"
)

// maxVariants is the maximum number of distinct contributions that a report lists.
const maxVariants = 16

// variant is one contribution and, in ascending order, the ranks that made it. note is the lowest
// rank's note; notes are not compared.
type variant struct {
	value, note []byte
	ranks       []int
}

// variants holds distinct contributions, ordered by their lowest rank, and the other ranks.
type variants struct {
	list   []variant
	others []int
}

// add must be called in ascending order of ranks.
func (v *variants) add(rank int, value, note []byte) {
	i := slices.IndexFunc(v.list, func(w variant) bool { return bytes.Equal(w.value, value) })
	switch {
	case i >= 0:
		v.list[i].ranks = append(v.list[i].ranks, rank)
	case len(v.list) == maxVariants:
		v.others = append(v.others, rank)
	default:
		// The next exchange may reuse the payloads.
		v.list = append(v.list, variant{bytes.Clone(value), bytes.Clone(note), []int{rank}})
	}
}

func (v *variants) equal() bool { return len(v.list) <= 1 && len(v.others) == 0 }
