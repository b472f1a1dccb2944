package diff

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"symmem/cmd/symmem/internal/diff/history"
	"symmem/internal/ranklist"
)

// groupSeparator is a part of the IDs of sequences of symmem's pools, such as "3 of group tp": it
// separates the number of the pool from the group.
const groupSeparator = " of group "

// group returns the ID of the group whose ranks should have the sequences. It returns "" for
// PyTorch's pools, which all ranks should have.
func (m *matchedSequences) group() string {
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

// memberRanks returns the ranks that should have the pool or group, as indexes of ranks. lost lists
// other ranks of the group. Their files have no events of the pool or group, but may have lost such
// events at the beginning.
func (m *matchedSequences) memberRanks(ranks []*history.Rank) (members, lost []int) {
	group := m.group()
	for i, s := range m.sequences {
		hasEvents := s != nil
		if hasEvents {
			members = append(members, i)
			continue
		}

		if ranks[i].LacksTrace { // cannot be compared
			continue
		}

		isOfAllRanks := group == ""
		switch {
		case isOfAllRanks:
			members = append(members, i)
		case !isInGroup(ranks, i, group): // should not have the sequence
		case ranks[i].IsPartial:
			lost = append(lost, i)
		default:
			members = append(members, i)
		}
	}

	return members, lost
}

// isInGroup reports whether rank i is in a group. It looks for the group in the events and windows
// of the rank, and in all files that list the group's ranks.
func isInGroup(ranks []*history.Rank, i int, group string) bool {
	rank := ranks[i]
	if group == rank.WorldGroup {
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

	var members []int // as stated by the files; nil if none states them
	for _, r := range ranks {
		stated := r.Members[group]
		if stated == nil {
			continue
		}

		if members != nil && !slices.Equal(members, stated) {
			return false // different groups have the same ID
		}

		members = stated
	}

	return slices.Contains(members, rank.Number)
}

// checkFiles returns notes about files that are missing or seem to be of another run. ranks must
// have the same format.
func checkFiles(ranks []*history.Rank) []string {
	var notes []string
	if missing := missingRanks(ranks); len(missing) > 0 {
		notes = append(notes, fmt.Sprintf("there is no file of %s (%s)", ranklist.Ranks(missing),
			ranks[0].Format))
	}

	// Times are in microseconds since 1970, or 0 if they are unknown.
	begins := make([]int64, len(ranks))
	ends := make([]int64, len(ranks))
	last := 0 // index of the rank whose events began last
	for i, r := range ranks {
		begins[i], ends[i] = timesOf(r)
		if begins[i] > begins[last] {
			last = i
		}
	}

	const maxGap = int64(time.Minute / time.Microsecond)
	for i, r := range ranks {
		hasTimes := ends[i] > 0
		if hasTimes && ends[i] < begins[last]-maxGap {
			notes = append(notes, fmt.Sprintf("the events of rank %d ended at %s, but those of rank %d "+
				"began at %s: the files may be of different runs", r.Number, formatTime(ends[i]),
				ranks[last].Number, formatTime(begins[last])))
		}
	}

	return notes
}

// missingRanks returns the numbers of the ranks without a file. If no file states the number of
// ranks, missingRanks assumes that the highest rank with a file is the last. If then half of the
// files or more would be missing, the assumption is probably wrong, and missingRanks returns nil.
func missingRanks(ranks []*history.Rank) []int {
	count := 0 // the number of ranks that the files state, or 0
	highest := 0
	isPresent := map[int]bool{}
	for _, r := range ranks {
		isPresent[r.Number] = true
		highest = max(highest, r.Number)
		count = max(count, r.RankCount)
		for _, members := range r.Members {
			if len(members) > 0 {
				count = max(count, slices.Max(members)+1)
			}
		}
	}

	if count == 0 {
		count = highest + 1
		if count >= 2*len(ranks) {
			return nil
		}
	}

	var missing []int
	for n := range count {
		if !isPresent[n] {
			missing = append(missing, n)
		}
	}

	return missing
}

// timesOf returns the times of a rank's first and last event in microseconds since 1970, or zeros
// if no event has a time.
func timesOf(r *history.Rank) (begin, end int64) {
	for _, s := range r.Sequences {
		for i := range s.Events {
			t := s.Events[i].UnixMicro
			if t <= 0 { // unknown
				continue
			}

			if begin == 0 || t < begin {
				begin = t
			}

			end = max(end, t)
		}
	}

	return begin, end
}

func formatTime(unixMicro int64) string {
	return time.UnixMicro(unixMicro).UTC().Format("2006-01-02 15:04:05 UTC")
}
