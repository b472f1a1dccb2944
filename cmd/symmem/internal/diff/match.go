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

// matchSequences finds the sequences of each pool and group on all ranks. The notes state which
// pools are not compared and why.
func matchSequences(
	ranks []*history.Rank, o Options,
) (matches []*matchedSequences, notes []string) {
	isPresent := map[history.Class]bool{}
	for _, r := range ranks {
		for _, s := range r.Sequences {
			isPresent[s.Class] = true
		}
	}
	onlyMemPools := isPresent[history.MemPool] && !o.AllPools
	for class := history.DefaultPool; class <= history.Calls; class++ {
		isOtherPool := class == history.DefaultPool || class == history.GraphPool
		switch {
		case !isPresent[class]:
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
// the same IDs, and otherwise by the order of their first events.
func matchClass(ranks []*history.Rank, class history.Class) []*matchedSequences {
	rankCounts := map[string]int{} // number of ranks that have each ID
	var ids []string               // in the order of their first occurrence
	tracedRanks := 0
	lists := make([][]*history.Sequence, len(ranks))
	for i, r := range ranks {
		if !r.LacksTrace {
			tracedRanks++
		}
		for _, s := range r.Sequences {
			if s.Class != class {
				continue
			}
			lists[i] = append(lists[i], s)
			rankCounts[s.ID]++
			if rankCounts[s.ID] == 1 {
				ids = append(ids, s.ID)
			}
		}
	}
	haveSameIDs := true
	for _, count := range rankCounts {
		haveSameIDs = haveSameIDs && count == tracedRanks
	}
	if haveSameIDs || class == history.Calls || class == history.SymmemPool {
		return matchByID(lists, class, ids)
	}
	return matchByOrder(lists, class)
}

// matchByID matches the sequences with equal IDs. lists holds the sequences of each rank.
func matchByID(lists [][]*history.Sequence, class history.Class, ids []string) []*matchedSequences {
	var all []*matchedSequences
	for _, id := range ids {
		m := &matchedSequences{
			class: class, id: id, title: sequenceTitle(class, id),
			sequences: make([]*history.Sequence, len(lists)),
		}
		for i, list := range lists {
			for _, s := range list {
				if s.ID == id {
					m.sequences[i] = s
				}
			}
		}
		all = append(all, m)
	}
	return all
}

// matchByOrder sorts the sequences of each rank by their first events, and matches the sequences
// at equal positions. lists holds the sequences of each rank.
func matchByOrder(lists [][]*history.Sequence, class history.Class) []*matchedSequences {
	longest := 0
	for _, list := range lists {
		slices.SortStableFunc(list, func(a, b *history.Sequence) int {
			return cmp.Compare(firstEventNumber(a), firstEventNumber(b))
		})
		longest = max(longest, len(list))
	}
	var all []*matchedSequences
	for position := range longest {
		m := &matchedSequences{
			class: class, title: sequenceTitle(class, fmt.Sprintf("%d in order of use", position)),
			sequences: make([]*history.Sequence, len(lists)),
		}
		for i, list := range lists {
			if position < len(list) {
				m.sequences[i] = list[position]
			}
		}
		all = append(all, m)
	}
	return all
}

// firstEventNumber returns the number of the first event, or a larger number if there is none.
func firstEventNumber(s *history.Sequence) int64 {
	if len(s.Events) == 0 {
		return math.MaxInt64
	}
	return s.Events[0].Number
}

func sequenceTitle(class history.Class, id string) string {
	if id == "" {
		return class.String()
	}
	return class.String() + " " + history.MakePrintable(id)
}
