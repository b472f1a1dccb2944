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
	// AllPools includes PyTorch's default pool and the pools of CUDA graphs even if there are
	// MemPools (memory pools that the program has created).
	AllPools bool
}

// On each rank, every pool of memory and every group of ranks has a sequence: the list of its
// events. A match consists of the sequences to compare with each other, at most one of each rank.
//
// Every sequence has an ID. For groups and symmem's pools, it is the same on all ranks. For
// PyTorch's pools, it may differ: rank 0 has MemPools with the IDs 1 and 2, and rank 1 with the IDs
// 1 and 3. In this case, the order decides. The MemPool with the first event on rank 0 matches the
// MemPool with the first event on rank 1, and so on.

// matchedSequences is a match.
type matchedSequences struct {
	class     history.Class
	id        string              // of all sequences, or "" if they were matched by order
	title     string              // name of the pool or group in reports
	sequences []*history.Sequence // one for each rank; nil if the rank has none
}

// matchSequences returns the matches to compare. The notes state which pools are not compared.
func matchSequences(
	ranks []*history.Rank, o Options,
) (matches []*matchedSequences, notes []string) {
	isPresent := presentClasses(ranks)
	// By creating MemPools, the user has chosen the memory that must agree between the ranks.
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

// presentClasses returns the set of classes that the sequences have.
func presentClasses(ranks []*history.Rank) map[history.Class]bool {
	isPresent := map[history.Class]bool{}
	for _, r := range ranks {
		for _, s := range r.Sequences {
			isPresent[s.Class] = true
		}
	}

	return isPresent
}

// matchClass returns the matches of a class.
func matchClass(ranks []*history.Rank, class history.Class) []*matchedSequences {
	byRank := make([][]*history.Sequence, len(ranks)) // the sequences of the class on each rank
	for i, r := range ranks {
		for _, s := range r.Sequences {
			if s.Class == class {
				byRank[i] = append(byRank[i], s)
			}
		}
	}

	ids, rankCounts := countIDs(byRank)
	tracedRanks := countTracedRanks(ranks)
	lacksRank := func(id string) bool { return rankCounts[id] != tracedRanks }
	haveSameIDs := !slices.ContainsFunc(ids, lacksRank)
	hasCommonIDs := class == history.Calls || class == history.SymmemPool // by definition
	if haveSameIDs || hasCommonIDs {
		return matchByID(byRank, class, ids)
	}

	return matchByOrder(byRank, class)
}

// countIDs returns all IDs, in the order of their first occurrence, and how many ranks have each.
func countIDs(byRank [][]*history.Sequence) (ids []string, rankCounts map[string]int) {
	rankCounts = map[string]int{}
	for _, sequences := range byRank {
		for _, s := range sequences {
			rankCounts[s.ID]++
			isNew := rankCounts[s.ID] == 1
			if isNew {
				ids = append(ids, s.ID)
			}
		}
	}

	return ids, rankCounts
}

// countTracedRanks returns the number of ranks with recorded events.
func countTracedRanks(ranks []*history.Rank) int {
	count := 0
	for _, r := range ranks {
		if !r.LacksTrace {
			count++
		}
	}

	return count
}

// matchByID returns a match for each ID. byRank holds the sequences of each rank.
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

// matchByOrder sorts the sequences of each rank by their first events. The first sequences of all
// ranks match, and so do the second ones, and so on. byRank holds the sequences of each rank.
func matchByOrder(byRank [][]*history.Sequence, class history.Class) []*matchedSequences {
	maxCount := 0 // largest number of sequences of a rank
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

// newMatch returns a match without sequences. Its title consists of the class and a name, as in
// "MemPool 1".
func newMatch(class history.Class, name string, rankCount int) *matchedSequences {
	title := class.String()
	if name != "" {
		title += " " + history.MakePrintable(name)
	}

	return &matchedSequences{
		class: class, title: title, sequences: make([]*history.Sequence, rankCount),
	}
}

// firstEventNumber returns the number of the first event. A sequence without events gets the
// largest number, so that it is sorted last.
func firstEventNumber(s *history.Sequence) int64 {
	if len(s.Events) == 0 {
		return math.MaxInt64
	}

	return s.Events[0].Number
}
