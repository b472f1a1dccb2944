package diff

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"symmem/cmd/symmem/internal/diff/history"
)

// match holds the event sequences to compare, one for each rank. All belong to one memory pool, or
// to one group of ranks.
//
// Groups and symmem's pools have the same ID on all ranks. PyTorch's pools can have the IDs 1 and 2
// on rank 0, but 1 and 3 on rank 1. Such pools are matched in the order of their first events.
type match struct {
	class     history.Class
	id        string              // common ID, or "" if matched by order
	title     string              // name of the pool or group in reports
	sequences []*history.Sequence // by index of the rank; nil if the rank has none
}

// matchSequences returns a match for each pool or group to compare. The notes list the pools that
// are not compared.
func matchSequences(
	ranks []*history.Rank, o Options,
) (matches []*match, notes []string) {
	isPresent := presentClasses(ranks)
	skipsOtherPools := isPresent[history.MemPool] && !o.AllPools
	for class := history.DefaultPool; class <= history.Calls; class++ {
		if !isPresent[class] {
			continue
		}

		isOptional := class == history.DefaultPool || class == history.GraphPool
		switch {
		case class == history.UnknownPool:
			notes = append(notes, "events whose pool is unknown were not compared")
		case isOptional && skipsOtherPools:
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

func matchClass(ranks []*history.Rank, class history.Class) []*match {
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
	isMissingOnSomeRank := func(id string) bool { return rankCounts[id] != tracedRanks }
	hasCommonIDs := class == history.Calls || class == history.SymmemPool
	if !hasCommonIDs && slices.ContainsFunc(ids, isMissingOnSomeRank) {
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

// matchByID matches sequences with the same ID.
func matchByID(
	byRank [][]*history.Sequence, class history.Class, ids []string,
) []*match {
	var matches []*match
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
func matchByOrder(byRank [][]*history.Sequence, class history.Class) []*match {
	maxCount := 0
	for _, sequences := range byRank {
		slices.SortStableFunc(sequences, func(a, b *history.Sequence) int {
			return cmp.Compare(firstEventNumber(a), firstEventNumber(b))
		})
		maxCount = max(maxCount, len(sequences))
	}

	var matches []*match
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
func newMatch(class history.Class, name string, rankCount int) *match {
	title := class.String()
	if name != "" {
		title += " " + history.MakePrintable(name)
	}

	return &match{
		class: class, title: title, sequences: make([]*history.Sequence, rankCount),
	}
}

func firstEventNumber(s *history.Sequence) int64 {
	if len(s.Events) == 0 {
		return math.MaxInt64 // sorted last
	}

	return s.Events[0].Number
}

// groupSeparator separates the number and the group in the ID of a symmem pool: "3 of group tp".
const groupSeparator = " of group "

// groupID returns the ID of the group of the pool or calls, or "" for a pool of PyTorch.
func (m *match) groupID() string {
	switch m.class {
	case history.Calls:
		return m.id
	case history.SymmemPool:
		_, group, _ := strings.Cut(m.id, groupSeparator)
		return group
	default:
		return ""
	}
}

// memberRanks returns the indexes of the ranks that should have the pool or make the calls. lost
// lists the indexes of those without events whose files may have lost the events.
func (m *match) memberRanks(ranks []*history.Rank) (members, lost []int) {
	group := m.groupID()
	for i, s := range m.sequences {
		switch {
		case s != nil:
			members = append(members, i)
		case ranks[i].LacksTrace:
			continue // there is nothing to compare
		case group == "": // pools of PyTorch should be on all ranks
			members = append(members, i)
		case !isInGroup(ranks, ranks[i], group):
			continue // the rank should have no events
		case ranks[i].IsPartial:
			lost = append(lost, i)
		default:
			members = append(members, i)
		}
	}

	return members, lost
}

// isInGroup reports whether the files show that a rank is in a group.
func isInGroup(ranks []*history.Rank, rank *history.Rank, group string) bool {
	if group == rank.WorldGroup { // the group of all ranks
		return true
	}

	for _, s := range rank.Sequences {
		hasCalls := s.Class == history.Calls && s.ID == group
		hasPool := s.Class == history.SymmemPool && strings.HasSuffix(s.ID, groupSeparator+group)
		if hasCalls || hasPool {
			return true
		}
	}

	for _, w := range rank.Windows {
		if w.Group == group {
			return true
		}
	}

	return slices.Contains(listedMembers(ranks, group), rank.Number)
}

// listedMembers returns the ranks of a group according to the files. It returns nil if the files
// disagree, because several groups can have the same ID.
func listedMembers(ranks []*history.Rank, group string) []int {
	var members []int
	for _, r := range ranks {
		listed := r.Members[group]
		if listed == nil {
			continue
		}

		if members != nil && !slices.Equal(members, listed) {
			return nil
		}

		members = listed
	}

	return members
}
