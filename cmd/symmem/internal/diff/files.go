package diff

import (
	"fmt"
	"slices"
	"time"

	"symmem/cmd/symmem/internal/diff/history"
	"symmem/internal/ranklist"
)

// checkFiles returns notes about missing files and files of other runs.
func checkFiles(ranks []*history.Rank) []string {
	var notes []string
	if missing := missingRanks(ranks); len(missing) > 0 {
		notes = append(notes, fmt.Sprintf("there is no file of %s (%s)", ranklist.Ranks(missing),
			ranks[0].Format))
	}

	return append(notes, otherRunNotes(ranks)...)
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
		for _, members := range r.Members { // of each group
			if len(members) > 0 {
				highest := slices.Max(members)
				count = max(count, highest+1)
			}
		}
	}

	return count
}

// otherRunNotes returns a note for each rank that ended long before another rank began.
func otherRunNotes(ranks []*history.Rank) []string {
	var notes []string
	begins := make([]int64, len(ranks)) // 0 if unknown
	ends := make([]int64, len(ranks))   // 0 if unknown
	latest := 0                         // index of the rank that began last
	for i, r := range ranks {
		begins[i], ends[i] = timesOf(r)
		if begins[i] > begins[latest] {
			latest = i
		}
	}

	const maxGapMicro = int64(time.Minute / time.Microsecond)
	for i, r := range ranks {
		hasTimes := ends[i] > 0
		gapMicro := begins[latest] - ends[i]
		if hasTimes && gapMicro > maxGapMicro {
			notes = append(notes, fmt.Sprintf("the events of rank %d ended at %s, but those of rank %d "+
				"began at %s: the files may be of different runs", r.Number, formatTime(ends[i]),
				ranks[latest].Number, formatTime(begins[latest])))
		}
	}

	return notes
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
