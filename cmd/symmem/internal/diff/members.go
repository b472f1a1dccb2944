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

// memberRanks returns the indexes of the ranks that should have the pool or group. PyTorch's pools
// should exist on all ranks. lost lists the ranks whose events may have been at the lost beginning
// of their files.
func (m *matchedSequences) memberRanks(ranks []*history.Rank) (members, lost []int) {
	group := m.group()
	for i, s := range m.sequences {
		switch {
		case s != nil:
		case ranks[i].LacksTrace || group != "" && !isInGroup(ranks, i, group):
			continue
		case group != "" && ranks[i].IsPartial:
			lost = append(lost, i)
			continue
		}
		members = append(members, i)
	}
	return members, lost
}

// isInGroup reports whether rank i is in a group, according to its own events and windows or to the
// files that list the group's ranks.
func isInGroup(ranks []*history.Rank, i int, group string) bool {
	for _, s := range ranks[i].Sequences {
		if s.Class == history.Calls && s.ID == group ||
			s.Class == history.SymmemPool && strings.HasSuffix(s.ID, groupSeparator+group) {
			return true
		}
	}
	if group == ranks[i].WorldGroup ||
		slices.ContainsFunc(ranks[i].Windows, func(w history.Window) bool { return w.Group == group }) {
		return true
	}
	var members []int
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
	last := 0 // the rank whose events began last
	times := make([][2]int64, len(ranks))
	for i, r := range ranks {
		times[i] = timesOf(r)
		if times[i][0] > times[last][0] {
			last = i
		}
	}
	const maxGap = int64(time.Minute / time.Microsecond)
	for i, r := range ranks {
		if end := times[i][1]; end > 0 && end < times[last][0]-maxGap {
			notes = append(notes, fmt.Sprintf("the events of rank %d ended at %s, but those of rank %d "+
				"began at %s: the files may be of different runs", r.Number, formatTime(end),
				ranks[last].Number, formatTime(times[last][0])))
		}
	}
	return notes
}

// missingRanks lists the ranks without a file. If no file states the number of ranks, it assumes
// that the highest rank is the last, unless half of the files or more would then be missing.
func missingRanks(ranks []*history.Rank) []int {
	stated, highest := 0, 0
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

// timesOf returns the times of a rank's first and last event in microseconds, or zeros.
func timesOf(r *history.Rank) (times [2]int64) {
	for _, s := range r.Sequences {
		for i := range s.Events {
			t := s.Events[i].UnixMicro
			if t > 0 && (times[0] == 0 || t < times[0]) {
				times[0] = t
			}
			times[1] = max(times[1], t)
		}
	}
	return times
}

func formatTime(unixMicro int64) string {
	return time.UnixMicro(unixMicro).UTC().Format("2006-01-02 15:04:05 UTC")
}
