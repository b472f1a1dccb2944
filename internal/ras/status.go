package ras

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// NCCL counts the collectives that each rank of a communicator has launched. If rank 0 has launched
// 4 AllReduces and rank 1 has launched 3, then rank 0 may be waiting for rank 1.

// Status is NCCL's report on all communicators of a job.
type Status struct {
	Communicators []Communicator `json:"communicators"`
}

// Communicator is a group of ranks that run collectives together.
type Communicator struct {
	Name  string `json:"hash"`  // as returned by ID
	Size  int    `json:"size"`  // number of ranks
	Ranks []Rank `json:"ranks"` // without those that did not answer
}

// Rank counts the collectives that a rank has launched.
type Rank struct {
	Rank   int               `json:"rank"`              // number in the communicator
	Counts map[string]uint64 `json:"collective_counts"` // by kind, such as "AllReduce"
}

// ID returns NCCL's name for a communicator, which is NCCL's own hash of its unique ID.
func ID(uniqueID []byte) string {
	const wordBytes = 8
	a := uint64(1) ^ uint64(len(uniqueID))
	b := uint64(1)
	rest := uniqueID
	for len(rest) > 0 {
		a += b
		b ^= a
		a ^= a >> 31
		a *= 0x9de62bbc8cef3ce3
		b ^= b >> 32
		b *= 0x485cd6311b599e79
		var word [wordBytes]byte
		copied := copy(word[:], rest) // The last word may be incomplete.
		a += binary.LittleEndian.Uint64(word[:])
		rest = rest[copied:]
	}

	a ^= a >> 31
	a *= 0xbac3bd562846de6b
	a += b
	a ^= a >> 32
	a *= 0x995a187a14e7b445
	return fmt.Sprintf("%#x", a)
}

var collectiveNames = []string{"Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce"}

// DescribeDifferences lists the counts that differ between a communicator's ranks, for example
// "AllReduce: 3 by rank 1, 4 by ranks 0,2-3". It returns "" if no counts differ, or no communicator
// has this ID and size. format formats ranks, as in "ranks 0,2-3".
func (s *Status) DescribeDifferences(id string, size int, format func(ranks []int) string) string {
	isWanted := func(c Communicator) bool { return c.Name == id && c.Size == size }
	index := slices.IndexFunc(s.Communicators, isWanted)
	if index < 0 {
		return ""
	}

	communicator := &s.Communicators[index]
	var differences []string
	for _, collective := range collectiveNames {
		difference := communicator.describeCounts(collective, format)
		if difference != "" {
			differences = append(differences, collective+": "+difference)
		}
	}

	return strings.Join(differences, "; ")
}

// describeCounts lists the counts of one collective if they differ, as in "3 by rank 1, 4 by ranks
// 0,2-3". It ignores ranks out of range, because the report may be wrong.
func (c *Communicator) describeCounts(
	collective string, format func(ranks []int) string,
) string {
	ranksByCount := map[uint64][]int{}
	for _, r := range c.Ranks {
		isInRange := r.Rank >= 0 && r.Rank < c.Size
		if isInRange {
			count := r.Counts[collective] // 0 if none was launched
			ranksByCount[count] = append(ranksByCount[count], r.Rank)
		}
	}

	if len(ranksByCount) < 2 {
		return ""
	}

	var parts []string
	for _, count := range slices.Sorted(maps.Keys(ranksByCount)) {
		ranks := ranksByCount[count]
		slices.Sort(ranks)
		parts = append(parts, fmt.Sprintf("%d by %s", count, format(ranks)))
	}

	return strings.Join(parts, ", ")
}
