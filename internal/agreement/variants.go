package agreement

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"slices"
)

// maxVariants is how many different contributions a report lists; a larger group in which nothing
// fits anything is not understood better for seeing them all.
const maxVariants = 16

// variant is one contribution and the ranks that made it. The note rides along without being
// compared: it is that of the lowest rank.
type variant struct {
	value, note []byte
	ranks       RankSet
}

// variants is a set of distinct contributions, ordered by their lowest rank. What exceeds
// maxVariants is kept as ranks alone.
type variants struct {
	list   []variant
	others RankSet
}

func oneVariant(rank int, value, note []byte) variants {
	return variants{list: []variant{{value, note, ranksOf(rank)}}}
}

// equal reports whether all ranks contributed the same.
func (v variants) equal() bool { return len(v.list) <= 1 && len(v.others) == 0 }

// merge returns the contributions of both. Its arguments must not be used afterwards.
func (v variants) merge(o variants) variants {
	for _, theirs := range o.list {
		i := slices.IndexFunc(v.list, func(own variant) bool {
			return bytes.Equal(own.value, theirs.value)
		})
		if i < 0 {
			v.list = append(v.list, theirs)
			continue
		}
		own := &v.list[i]
		if theirs.ranks.First() < own.ranks.First() {
			own.note = theirs.note
		}
		own.ranks = own.ranks.union(theirs.ranks)
	}
	slices.SortFunc(v.list, func(a, b variant) int {
		return cmp.Compare(a.ranks.First(), b.ranks.First())
	})
	v.others = v.others.union(o.others)
	for len(v.list) > maxVariants {
		last := len(v.list) - 1
		v.others = v.others.union(v.list[last].ranks)
		v.list = v.list[:last]
	}
	return v
}

func (v variants) append(dst []byte) []byte {
	dst = append(dst, byte(len(v.list)))
	for _, one := range v.list {
		dst = appendBytes(dst, one.value)
		dst = appendBytes(dst, one.note)
		dst = one.ranks.append(dst)
	}
	return v.others.append(dst)
}

// variants reads a set whose ranks together are exactly the given ones.
func (r *reader) variants(all RankSet, what string) variants {
	var v variants
	n := r.count(maxVariants, what)
	var seen RankSet
	total := 0
	for range n {
		one := variant{value: r.bytes(maxValue, what), note: r.bytes(maxNote, what)}
		one.ranks = r.rankSet(what)
		if k := len(v.list); len(one.ranks) == 0 ||
			k > 0 && v.list[k-1].ranks.First() >= one.ranks.First() {
			r.fail(what)
			return variants{}
		}
		seen = seen.union(one.ranks)
		total += one.ranks.Len()
		v.list = append(v.list, one)
	}
	v.others = r.rankSet(what)
	seen = seen.union(v.others)
	if total+v.others.Len() != all.Len() || !slices.Equal(seen, all) {
		r.fail(what)
	}
	return v
}

// appendWords encodes whole numbers as a value that compares by its bytes.
func appendWords(dst []byte, words ...uint64) []byte {
	for _, w := range words {
		dst = binary.LittleEndian.AppendUint64(dst, w)
	}
	return dst
}
