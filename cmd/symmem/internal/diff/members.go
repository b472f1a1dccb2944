package diff

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"symmem/cmd/symmem/internal/diff/history"
	"symmem/internal/ranklist"
)

// A comparison needs to know which ranks should have events of a pool or group. Example: the group
// "tp" consists of the ranks 0, 1 and 2. The files of ranks 0 and 1 have calls of the group, but
// the files of ranks 2 and 3 have none.
//
//   - The ranks 0, 1 and 2 are members of the comparison, so diff reports missing calls of rank 2.
//     Rank 3 is no member, because it is not in the group.
//   - But if the file of rank 2 has lost its oldest events, these may have been calls of the group.
//     Then, rank 2 is no member. It is lost, and diff only notes this.
//
// A pool of symmem belongs to a group. The pools of PyTorch have no group, and should be on all
// ranks.

// groupSeparator separates the number of a symmem pool from its group in the ID of the pool, as in
// "3 of group tp".
const groupSeparator = " of group "

// group returns the ID of the group to which the pool or the calls belong. It returns "" for a pool
// of PyTorch.
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
	for i, s := range m.sequences {
		hasEvents := s != nil
		if hasEvents {
			members = append(members, i)
			continue
		}

		if ranks[i].LacksTrace { // the file has no events at all, so it cannot be compared
			continue
		}

		isPyTorchPool := group == ""
		switch {
		case isPyTorchPool:
			members = append(members, i)
		case !isInGroup(ranks, i, group): // should not have events
		case ranks[i].IsPartial:
			lost = append(lost, i)
		default:
			members = append(members, i)
		}
	}

	return members, lost
}

// isInGroup reports whether the file of rank i or a list of members shows that it is in a group.
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
// lists them, or if two files list different ranks, because these are groups with the same ID.
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

	// In one run, the events of all ranks should overlap in time, or almost.
	const maxGap = int64(time.Minute / time.Microsecond)
	for i, r := range ranks {
		hasTimes := ends[i] > 0
		endedBefore := ends[i] < begins[last]-maxGap
		if hasTimes && endedBefore {
			notes = append(notes, fmt.Sprintf("the events of rank %d ended at %s, but those of rank %d "+
				"began at %s: the files may be of different runs", r.Number, formatTime(ends[i]),
				ranks[last].Number, formatTime(begins[last])))
		}
	}

	return notes
}

// missingRanks returns the numbers of the ranks without a file. If the files do not state the
// number of ranks, it assumes that the highest rank with a file is the last.
func missingRanks(ranks []*history.Rank) []int {
	count := statedRankCount(ranks)
	if count == 0 {
		highest := 0
		for _, r := range ranks {
			highest = max(highest, r.Number)
		}

		count = highest + 1
		isMissingHalf := count >= 2*len(ranks)
		if isMissingHalf { // probably, the numbers in the names of the files are not ranks
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
// A group with the rank 6 shows that there are at least 7 ranks.
func statedRankCount(ranks []*history.Rank) int {
	count := 0
	for _, r := range ranks {
		count = max(count, r.RankCount)
		for _, members := range r.Members {
			if len(members) > 0 {
				count = max(count, slices.Max(members)+1)
			}
		}
	}

	return count
}

// timesOf returns the times of a rank's first and last event in microseconds since 1970. It returns
// zeros if no event has a time.
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
