package ras

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Status describes all communicators of a job.
type Status struct {
	Communicators []Communicator `json:"communicators"`
}

// Communicator describes one communicator.
type Communicator struct {
	Name  string `json:"hash"`  // as returned by ID
	Size  int    `json:"size"`  // number of ranks
	Ranks []Rank `json:"ranks"` // ranks that have responded to NCCL
}

// Rank holds the number of collectives of each kind that a rank has launched.
type Rank struct {
	Rank   int               `json:"rank"`
	Counts map[string]uint64 `json:"collective_counts"`
}

// ID returns NCCL's name for the communicator with the given unique ID, a hash of the ID.
func ID(unique []byte) string {
	a, b := uint64(1)^uint64(len(unique)), uint64(1)
	for ; len(unique) > 0; unique = unique[min(8, len(unique)):] {
		a += b
		b ^= a
		a ^= a >> 31
		a *= 0x9de62bbc8cef3ce3
		b ^= b >> 32
		b *= 0x485cd6311b599e79
		var word [8]byte
		copy(word[:], unique)
		a += binary.LittleEndian.Uint64(word[:])
	}
	a ^= a >> 31
	a *= 0xbac3bd562846de6b
	a += b
	a ^= a >> 32
	a *= 0x995a187a14e7b445
	return fmt.Sprintf("%#x", a)
}

// collectives lists the names of NCCL's counters.
var collectives = []string{"Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce"}

// Differences describes which counters of a communicator's ranks differ, for example "AllReduce: 3
// by rank 1, 4 by ranks 0,2-3". If no counters differ or the communicator is unknown, it returns
// "". format formats a list of ranks.
func (s *Status) Differences(id string, size int, format func(ranks []int) string) string {
	index := slices.IndexFunc(s.Communicators, func(c Communicator) bool {
		return c.Name == id && c.Size == size
	})
	if index < 0 {
		return ""
	}
	var differences []string
	for _, collective := range collectives {
		if text := s.Communicators[index].describeDifference(collective, format); text != "" {
			differences = append(differences, collective+": "+text)
		}
	}
	return strings.Join(differences, "; ")
}

func (c *Communicator) describeDifference(
	collective string, format func(ranks []int) string,
) string {
	ranksByCount := map[uint64][]int{}
	for _, r := range c.Ranks {
		if r.Rank >= 0 && r.Rank < c.Size {
			n := r.Counts[collective]
			ranksByCount[n] = append(ranksByCount[n], r.Rank)
		}
	}
	if len(ranksByCount) < 2 {
		return ""
	}
	var parts []string
	for _, n := range slices.Sorted(maps.Keys(ranksByCount)) {
		slices.Sort(ranksByCount[n])
		parts = append(parts, fmt.Sprintf("%d by %s", n, format(ranksByCount[n])))
	}
	return strings.Join(parts, ", ")
}
