package diff

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"symmem/cmd/symmem/internal/diff/history"
)

// Options selects what Compare compares.
type Options struct {
	// AllPools includes PyTorch's default pool and the pools of CUDA graphs even if there are MemPools
	// (memory pools that the program has created).
	AllPools bool
}

// matchedSequences holds the event sequences to compare: on each rank, the sequence of one memory
// pool or of one group of ranks.
//
// A group or a pool of symmem has the same ID on all ranks. PyTorch's pools can have the IDs 1 and
// 2 on rank 0, but 1 and 3 on rank 1. They are then matched in the order of their first events.
type matchedSequences struct {
	class     history.Class
	id        string              // common ID, or "" if matched by order
	title     string              // name of the pool or group in reports
	sequences []*history.Sequence // by rank; nil if the rank has none
}

// matchSequences returns a match for each pool or group. The notes state which pools are excluded.
func matchSequences(
	ranks []*history.Rank, o Options,
) (matches []*matchedSequences, notes []string) {
	isPresent := presentClasses(ranks)
	// With MemPools, only their memory has to agree between ranks.
	onlyMemPools := isPresent[history.MemPool] && !o.AllPools
	for class := history.DefaultPool; class <= history.Calls; class++ { // Calls is the last class
		if !isPresent[class] {
			continue
		}

		isOptional := class == history.DefaultPool || class == history.GraphPool
		switch {
		case class == history.UnknownPool:
			notes = append(notes, "events whose pool is unknown were not compared")
		case isOptional && onlyMemPools:
			notes = append(notes, fmt.Sprintf("the %v was not compared, because there are MemPools: "+
				"use --all-pools to compare it too", class))
		default:
			matches = append(matches, matchClass(ranks, class)...)
		}
	}

	return matches, notes
}

func presentClasses(ranks []*history.Rank) map[history.Class]bool {
	isPresent := map[history.Class]bool{}
	for _, r := range ranks {
		for _, s := range r.Sequences {
			isPresent[s.Class] = true
		}
	}

	return isPresent
}

func matchClass(ranks []*history.Rank, class history.Class) []*matchedSequences {
	byRank := make([][]*history.Sequence, len(ranks))
	for i, r := range ranks {
		for _, s := range r.Sequences {
			if s.Class == class {
				byRank[i] = append(byRank[i], s)
			}
		}
	}

	ids, rankCounts := countIDs(byRank)
	tracedRanks := countTracedRanks(ranks)
	isMissingOnRank := func(id string) bool { return rankCounts[id] != tracedRanks }
	isPyTorchPool := class != history.Calls && class != history.SymmemPool
	if isPyTorchPool && slices.ContainsFunc(ids, isMissingOnRank) {
		return matchByOrder(byRank, class)
	}

	return matchByID(byRank, class, ids)
}

// countIDs returns the IDs in order of first occurrence, and the number of ranks with each ID.
func countIDs(byRank [][]*history.Sequence) (ids []string, rankCounts map[string]int) {
	rankCounts = map[string]int{}
	for _, sequences := range byRank {
		for _, s := range sequences {
			rankCounts[s.ID]++
			if rankCounts[s.ID] == 1 {
				ids = append(ids, s.ID)
			}
		}
	}

	return ids, rankCounts
}

func countTracedRanks(ranks []*history.Rank) int {
	count := 0
	for _, r := range ranks {
		if !r.LacksTrace {
			count++
		}
	}

	return count
}

// matchByID matches sequences with the same ID. byRank has the sequences of each rank.
func matchByID(
	byRank [][]*history.Sequence, class history.Class, ids []string,
) []*matchedSequences {
	var matches []*matchedSequences
	for _, id := range ids {
		m := newMatch(class, id, len(byRank))
		m.id = id
		for i, sequences := range byRank {
			for _, s := range sequences {
				if s.ID == id {
					m.sequences[i] = s
				}
			}
		}

		matches = append(matches, m)
	}

	return matches
}

// matchByOrder sorts the sequences of each rank by their first events, and matches those at the
// same position.
func matchByOrder(byRank [][]*history.Sequence, class history.Class) []*matchedSequences {
	maxCount := 0
	for _, sequences := range byRank {
		slices.SortStableFunc(sequences, func(a, b *history.Sequence) int {
			return cmp.Compare(firstEventNumber(a), firstEventNumber(b))
		})
		maxCount = max(maxCount, len(sequences))
	}

	var matches []*matchedSequences
	for position := range maxCount {
		m := newMatch(class, fmt.Sprintf("%d in order of use", position), len(byRank))
		for i, sequences := range byRank {
			if position < len(sequences) {
				m.sequences[i] = sequences[position]
			}
		}

		matches = append(matches, m)
	}

	return matches
}

// newMatch returns a match without sequences. Its title is the class and name, as in "MemPool 1".
func newMatch(class history.Class, name string, rankCount int) *matchedSequences {
	title := class.String()
	if name != "" {
		title += " " + history.MakePrintable(name)
	}

	return &matchedSequences{
		class: class, title: title, sequences: make([]*history.Sequence, rankCount),
	}
}

func firstEventNumber(s *history.Sequence) int64 {
	if len(s.Events) == 0 {
		return math.MaxInt64 // sorted last
	}

	return s.Events[0].Number
}
