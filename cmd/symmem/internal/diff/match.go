package diff

import (
	"cmp"
	"fmt"
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
	id        string // empty if the sequences were matched by order
	title     string
	sequences []*history.Sequence // one for each rank; nil if the rank lacks the pool or group
}

// matchSequences matches the sequences of the same pool or group. notes lists what is not compared.
func matchSequences(
	ranks []*history.Rank, o Options,
) (matches []*matchedSequences, notes []string) {
	isPresent := map[history.Class]bool{}
	for _, r := range ranks {
		for _, s := range r.Sequences {
			isPresent[s.Class] = true
		}
	}
	for class := history.DefaultPool; class <= history.Calls; class++ {
		switch {
		case !isPresent[class]:
		case class == history.UnknownPool:
			notes = append(notes, "events whose pool is unknown were not compared")
		case !o.AllPools && isPresent[history.MemPool] &&
			(class == history.DefaultPool || class == history.GraphPool):
			notes = append(notes, fmt.Sprintf("the %v was not compared, because there are MemPools: "+
				"use --all-pools to compare it too", class))
		default:
			matches = append(matches, matchClass(ranks, class)...)
		}
	}
	return matches, notes
}

// matchClass matches the sequences of a class. It uses their IDs for groups, for symmem's pools,
// and if all ranks have the same IDs. Otherwise, it uses the order of their first events.
func matchClass(ranks []*history.Rank, class history.Class) []*matchedSequences {
	idCounts, ids := map[string]int{}, []string{}
	haveSameIDs, recorded := true, 0
	lists := make([][]*history.Sequence, len(ranks))
	for i, r := range ranks {
		if !r.LacksTrace {
			recorded++
		}
		for _, s := range r.Sequences {
			if s.Class != class {
				continue
			}
			lists[i] = append(lists[i], s)
			if idCounts[s.ID]++; idCounts[s.ID] == 1 {
				ids = append(ids, s.ID)
			}
		}
	}
	for _, count := range idCounts {
		haveSameIDs = haveSameIDs && count == recorded
	}
	if haveSameIDs || class == history.Calls || class == history.SymmemPool {
		return matchByID(lists, class, ids)
	}
	return matchByOrder(lists, class)
}

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

func firstEventNumber(s *history.Sequence) int64 {
	if len(s.Events) == 0 {
		return 1 << 62
	}
	return s.Events[0].Number
}

func sequenceTitle(class history.Class, id string) string {
	if id == "" {
		return class.String()
	}
	return class.String() + " " + history.MakePrintable(id)
}
