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
	// AllPools includes the default pool and the pools of graphs even if there are MemPools.
	AllPools bool
}

// matchedSequences holds the sequences (lists of events) of one pool or group on all ranks.
type matchedSequences struct {
	class     history.Class
	id        string              // ID of all sequences, or "" if they were matched by order
	title     string              // name of the pool or group in reports
	sequences []*history.Sequence // one for each rank; nil if the rank lacks the pool or group
}

// matchSequences finds the pools and groups to compare, and the sequence of each on every rank. The
// notes state which pools are not compared and why.
func matchSequences(
	ranks []*history.Rank, o Options,
) (matches []*matchedSequences, notes []string) {
	isPresent := map[history.Class]bool{}
	for _, r := range ranks {
		for _, s := range r.Sequences {
			isPresent[s.Class] = true
		}
	}

	// With MemPools, the user has chosen which memory must agree between the ranks.
	onlyMemPools := isPresent[history.MemPool] && !o.AllPools
	for class := history.DefaultPool; class <= history.Calls; class++ { // Calls is the last class
		if !isPresent[class] {
			continue
		}

		isOtherPool := class == history.DefaultPool || class == history.GraphPool
		switch {
		case class == history.UnknownPool:
			notes = append(notes, "events whose pool is unknown were not compared")
		case onlyMemPools && isOtherPool:
			notes = append(notes, fmt.Sprintf("the %v was not compared, because there are MemPools: "+
				"use --all-pools to compare it too", class))
		default:
			matches = append(matches, matchClass(ranks, class)...)
		}
	}

	return matches, notes
}

// matchClass matches the sequences of a class. Groups and symmem's pools are matched by ID,
// because an ID means the same on all ranks. Other pools are matched by ID only if all ranks have
// the same IDs. Otherwise, they are matched by the order of their first events.
func matchClass(ranks []*history.Rank, class history.Class) []*matchedSequences {
	rankCounts := map[string]int{} // number of ranks that have each ID
	var ids []string               // in the order of their first occurrence
	tracedRanks := 0               // number of ranks with recorded events
	byRank := make([][]*history.Sequence, len(ranks))
	for i, r := range ranks {
		if !r.LacksTrace {
			tracedRanks++
		}

		for _, s := range r.Sequences {
			if s.Class != class {
				continue
			}

			byRank[i] = append(byRank[i], s)
			rankCounts[s.ID]++
			if rankCounts[s.ID] == 1 {
				ids = append(ids, s.ID)
			}
		}
	}

	haveSameIDs := true
	for _, count := range rankCounts {
		if count != tracedRanks {
			haveSameIDs = false
		}
	}

	if haveSameIDs || class == history.Calls || class == history.SymmemPool {
		return matchByID(byRank, class, ids)
	}

	return matchByOrder(byRank, class)
}

// matchByID matches the sequences with equal IDs. byRank holds the sequences of each rank.
func matchByID(
	byRank [][]*history.Sequence, class history.Class, ids []string,
) []*matchedSequences {
	var matches []*matchedSequences
	for _, id := range ids {
		m := &matchedSequences{
			class: class, id: id, title: sequenceTitle(class, id),
			sequences: make([]*history.Sequence, len(byRank)),
		}
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

// matchByOrder sorts the sequences of each rank by their first events. It matches the first
// sequences of all ranks, the second ones and so on. byRank holds the sequences of each rank.
func matchByOrder(byRank [][]*history.Sequence, class history.Class) []*matchedSequences {
	maxCount := 0 // of the sequences of a rank
	for _, sequences := range byRank {
		slices.SortStableFunc(sequences, func(a, b *history.Sequence) int {
			return cmp.Compare(firstEventNumber(a), firstEventNumber(b))
		})
		maxCount = max(maxCount, len(sequences))
	}

	var matches []*matchedSequences
	for position := range maxCount {
		m := &matchedSequences{
			class: class, title: sequenceTitle(class, fmt.Sprintf("%d in order of use", position)),
			sequences: make([]*history.Sequence, len(byRank)),
		}
		for i, sequences := range byRank {
			if position < len(sequences) {
				m.sequences[i] = sequences[position]
			}
		}

		matches = append(matches, m)
	}

	return matches
}

// firstEventNumber returns the number of the first event. If there is none, it returns the largest
// number, so that the sequence is the last one.
func firstEventNumber(s *history.Sequence) int64 {
	if len(s.Events) == 0 {
		return math.MaxInt64
	}

	return s.Events[0].Number
}

// sequenceTitle returns the name of a pool or group in reports, such as "MemPool 1".
func sequenceTitle(class history.Class, id string) string {
	if id == "" {
		return class.String()
	}

	return class.String() + " " + history.MakePrintable(id)
}
