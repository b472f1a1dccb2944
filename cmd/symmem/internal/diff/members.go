package diff

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"symmem/cmd/symmem/internal/diff/history"
	"symmem/internal/ranklist"
)

// The members of a comparison are the ranks that should have events of a pool or group. Suppose
// that the group "tp" has the ranks 0, 1 and 2, but the file of rank 2 has no calls of "tp". Then
// rank 2 is a member whose calls are missing. If the file lacks its oldest events, which can
// include the calls, rank 2 is "lost" instead, and not compared. Pools of PyTorch should be on all
// ranks.

// groupSeparator separates the number and the group in the ID of a symmem pool: "3 of group tp".
const groupSeparator = " of group "

// group returns the ID of the group that has the pool or makes the calls, or "" for a pool of
// PyTorch.
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

// memberRanks returns the members of the comparison and the lost ranks, as indexes in ranks.
func (m *matchedSequences) memberRanks(ranks []*history.Rank) (members, lost []int) {
	group := m.group()
	isPyTorchPool := group == ""
	for i, s := range m.sequences {
		hasEvents := s != nil
		mayHaveLostEvents := !isPyTorchPool && ranks[i].IsPartial
		switch {
		case hasEvents:
			members = append(members, i)
		case ranks[i].LacksTrace:
			continue // there is nothing to compare
		case !isPyTorchPool && !isInGroup(ranks, i, group):
			continue // the rank should have no events
		case mayHaveLostEvents:
			lost = append(lost, i)
		default:
			members = append(members, i)
		}
	}

	return members, lost
}

// isInGroup reports whether any file shows that ranks[i] is in a group.
func isInGroup(ranks []*history.Rank, i int, group string) bool {
	rank := ranks[i]
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

	for _, w := range rank.Windows { // memory that is registered with a group
		if w.Group == group {
			return true
		}
	}

	return slices.Contains(listedMembers(ranks, group), rank.Number)
}

// listedMembers returns the ranks of a group according to the files. It returns nil if no file
// lists the ranks, or if two files disagree, because several groups can have the same ID.
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

// checkFiles returns notes about files that are missing or seem to be from another run. All files
// must have the same format.
func checkFiles(ranks []*history.Rank) []string {
	var notes []string
	if missing := missingRanks(ranks); len(missing) > 0 {
		notes = append(notes, fmt.Sprintf("there is no file of %s (%s)", ranklist.Ranks(missing),
			ranks[0].Format))
	}

	return append(notes, otherRunNotes(ranks)...)
}

// otherRunNotes returns a note for each rank whose events ended long before another rank began.
func otherRunNotes(ranks []*history.Rank) []string {
	var notes []string
	begins := make([]int64, len(ranks))
	ends := make([]int64, len(ranks))
	last := 0 // index of the rank whose events began last
	for i, r := range ranks {
		begins[i], ends[i] = timesOf(r)
		if begins[i] > begins[last] {
			last = i
		}
	}

	const maxGapMicro = int64(time.Minute / time.Microsecond) // between two ranks of one run
	for i, r := range ranks {
		hasTimes := ends[i] > 0
		gapMicro := begins[last] - ends[i]
		if hasTimes && gapMicro > maxGapMicro {
			notes = append(notes, fmt.Sprintf("the events of rank %d ended at %s, but those of rank %d "+
				"began at %s: the files may be of different runs", r.Number, formatTime(ends[i]),
				ranks[last].Number, formatTime(begins[last])))
		}
	}

	return notes
}

// missingRanks returns the ranks without a file. If the files do not state the number of ranks, the
// highest rank with a file counts as the last rank.
func missingRanks(ranks []*history.Rank) []int {
	count := statedRankCount(ranks)
	if count == 0 {
		highest := 0
		for _, r := range ranks {
			highest = max(highest, r.Number)
		}

		count = highest + 1
		isHalfMissing := count >= 2*len(ranks)
		if isHalfMissing { // the numbers in the file names are probably not ranks
			return nil
		}
	}

	hasFile := map[int]bool{}
	for _, r := range ranks {
		hasFile[r.Number] = true
	}

	var missing []int
	for n := range count {
		if !hasFile[n] {
			missing = append(missing, n)
		}
	}

	return missing
}

// statedRankCount returns the number of ranks according to the files, or 0 if they do not state it.
func statedRankCount(ranks []*history.Rank) int {
	count := 0
	for _, r := range ranks {
		count = max(count, r.RankCount)
		for _, members := range r.Members {
			if len(members) > 0 {
				highest := slices.Max(members)
				count = max(count, highest+1)
			}
		}
	}

	return count
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
