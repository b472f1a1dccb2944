package ras

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Status is NCCL's report on all communicators of a job.
type Status struct {
	Communicators []Communicator `json:"communicators"`
}

// Communicator contains the ranks of a communicator that answered NCCL's query.
type Communicator struct {
	Name  string `json:"hash"` // as returned by ID
	Size  int    `json:"size"` // number of ranks
	Ranks []Rank `json:"ranks"`
}

// Rank holds the number of collectives of each kind that a rank has launched.
type Rank struct {
	Rank   int               `json:"rank"`
	Counts map[string]uint64 `json:"collective_counts"`
}

// ID returns NCCL's name for a communicator: a hash of its unique ID. The hash function is NCCL's.
func ID(uniqueID []byte) string {
	a, b := uint64(1)^uint64(len(uniqueID)), uint64(1)
	for ; len(uniqueID) > 0; uniqueID = uniqueID[min(8, len(uniqueID)):] {
		a += b
		b ^= a
		a ^= a >> 31
		a *= 0x9de62bbc8cef3ce3
		b ^= b >> 32
		b *= 0x485cd6311b599e79
		var word [8]byte
		copy(word[:], uniqueID)
		a += binary.LittleEndian.Uint64(word[:])
	}
	a ^= a >> 31
	a *= 0xbac3bd562846de6b
	a += b
	a ^= a >> 32
	a *= 0x995a187a14e7b445
	return fmt.Sprintf("%#x", a)
}

// collectiveNames lists the keys of Rank.Counts that DescribeDifferences compares.
var collectiveNames = []string{"Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce"}

// DescribeDifferences lists the counts that differ between a communicator's ranks, for example
// "AllReduce: 3 by rank 1, 4 by ranks 0,2-3". It returns "" if no counts differ, or if no
// communicator has this ID and size. format formats a list of ranks.
func (s *Status) DescribeDifferences(id string, size int, format func(ranks []int) string) string {
	index := slices.IndexFunc(s.Communicators, func(c Communicator) bool {
		return c.Name == id && c.Size == size
	})
	if index < 0 {
		return ""
	}
	var differences []string
	for _, collective := range collectiveNames {
		if text := s.Communicators[index].describeDifference(collective, format); text != "" {
			differences = append(differences, collective+": "+text)
		}
	}
	return strings.Join(differences, "; ")
}

// describeDifference lists the ranks by their counts of one collective, or returns "" if all ranks
// have the same count. It ignores invalid ranks, because the report is not trusted.
func (c *Communicator) describeDifference(
	collective string, format func(ranks []int) string,
) string {
	ranksByCount := map[uint64][]int{}
	for _, r := range c.Ranks {
		if r.Rank >= 0 && r.Rank < c.Size {
			count := r.Counts[collective]
			ranksByCount[count] = append(ranksByCount[count], r.Rank)
		}
	}
	if len(ranksByCount) < 2 {
		return ""
	}
	var parts []string
	for _, count := range slices.Sorted(maps.Keys(ranksByCount)) {
		slices.Sort(ranksByCount[count])
		parts = append(parts, fmt.Sprintf("%d by %s", count, format(ranksByCount[count])))
	}
	return strings.Join(parts, ", ")
}
