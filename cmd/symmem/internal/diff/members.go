package diff

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"symmem/cmd/symmem/internal/diff/history"
	"symmem/internal/ranklist"
)

// groupSeparator separates the number of a symmem pool from its group in a sequence's ID.
const groupSeparator = " of group "

// group returns the ID of the group whose ranks should have the sequences, or "" if all ranks
// should have them.
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

// memberRanks returns the indexes of the ranks that should have the pool or group. All ranks
// should have PyTorch's pools. lost lists the other ranks whose files may have lost events of the
// pool or group at the beginning.
func (m *matchedSequences) memberRanks(ranks []*history.Rank) (members, lost []int) {
	group := m.group()
	for i, s := range m.sequences {
		hasEvents := s != nil
		isOfAllRanks := group == ""
		switch {
		case hasEvents:
			members = append(members, i)
		case ranks[i].LacksTrace:
		case isOfAllRanks:
			members = append(members, i)
		case !isInGroup(ranks, i, group):
		case ranks[i].IsPartial:
			lost = append(lost, i)
		default:
			members = append(members, i)
		}
	}
	return members, lost
}

// isInGroup reports whether rank i is in a group, according to its own events and windows or to the
// files that list the group's ranks.
func isInGroup(ranks []*history.Rank, i int, group string) bool {
	for _, s := range ranks[i].Sequences {
		hasCalls := s.Class == history.Calls && s.ID == group
		hasPool := s.Class == history.SymmemPool && strings.HasSuffix(s.ID, groupSeparator+group)
		if hasCalls || hasPool {
			return true
		}
	}
	isOfGroup := func(w history.Window) bool { return w.Group == group }
	if group == ranks[i].WorldGroup || slices.ContainsFunc(ranks[i].Windows, isOfGroup) {
		return true
	}
	var members []int // as stated by the files
	for _, r := range ranks {
		stated := r.Members[group]
		if members != nil && stated != nil && !slices.Equal(members, stated) {
			return false // different groups of the same name
		}
		if stated != nil {
			members = stated
		}
	}
	return slices.Contains(members, ranks[i].Number)
}

// checkFiles returns notes about files that are missing or seem to be of another run. ranks must
// have the same format.
func checkFiles(ranks []*history.Rank) []string {
	var notes []string
	if missing := missingRanks(ranks); len(missing) > 0 {
		notes = append(notes, fmt.Sprintf("there is no file of %s (%s)", ranklist.Ranks(missing),
			ranks[0].Format))
	}
	last := 0 // index of the rank whose events began last
	begins, ends := make([]int64, len(ranks)), make([]int64, len(ranks))
	for i, r := range ranks {
		begins[i], ends[i] = timesOf(r)
		if begins[i] > begins[last] {
			last = i
		}
	}
	const maxGap = int64(time.Minute / time.Microsecond) // in microseconds
	for i, r := range ranks {
		if ends[i] > 0 && ends[i] < begins[last]-maxGap {
			notes = append(notes, fmt.Sprintf("the events of rank %d ended at %s, but those of rank %d "+
				"began at %s: the files may be of different runs", r.Number, formatTime(ends[i]),
				ranks[last].Number, formatTime(begins[last])))
		}
	}
	return notes
}

// missingRanks returns the numbers of the ranks without a file. If no file states the number of
// ranks, it assumes that the highest rank with a file is the last, unless half of the files or
// more would then be missing.
func missingRanks(ranks []*history.Rank) []int {
	stated := 0 // the number of ranks that the files state, or 0
	highest := 0
	isPresent := map[int]bool{}
	for _, r := range ranks {
		isPresent[r.Number] = true
		highest = max(highest, r.Number)
		stated = max(stated, r.RankCount)
		for _, members := range r.Members {
			if len(members) > 0 {
				stated = max(stated, slices.Max(members)+1)
			}
		}
	}
	if stated == 0 && highest+1 >= 2*len(ranks) {
		return nil
	}
	var missing []int
	for n := range max(stated, highest+1) {
		if !isPresent[n] && (stated == 0 || n < stated) {
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
			if t > 0 && (begin == 0 || t < begin) {
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
