package driver

import "slices"

// Splits divides a buffer into one part for each rank. Parts can differ in size and have gaps
// between them. For example, RecvCounts 2, 3 and RecvOffsets 0, 4 divide the receive buffer into 2
// elements from rank 0, a gap of 2, and 3 elements from rank 1. An AllToAllV divides both buffers.
type Splits struct {
	// These are in elements, by group rank.
	SendCounts, SendOffsets []int64 // nil for AllGatherV
	RecvCounts, RecvOffsets []int64 // nil for ReduceScatterV
}

// WithOffsets returns a copy of s in which missing offsets make parts adjacent, in group order. It
// returns s if no offsets are missing or s is nil.
func (s *Splits) WithOffsets() *Splits {
	if s == nil {
		return nil
	}

	lacksSendOffsets := s.SendCounts != nil && s.SendOffsets == nil
	lacksRecvOffsets := s.RecvCounts != nil && s.RecvOffsets == nil
	if !lacksSendOffsets && !lacksRecvOffsets {
		return s
	}

	filled := *s
	if lacksSendOffsets {
		filled.SendOffsets = adjacentOffsets(s.SendCounts)
	}

	if lacksRecvOffsets {
		filled.RecvOffsets = adjacentOffsets(s.RecvCounts)
	}

	return &filled
}

// adjacentOffsets returns the offsets of adjacent parts, or nil without counts.
func adjacentOffsets(counts []int64) []int64 {
	var offsets []int64
	next := int64(0)
	for _, count := range counts {
		offsets = append(offsets, next)
		next += count
	}

	return offsets
}

// countsAndOffsets returns the lists of the divided buffer of an AllGatherV or ReduceScatterV.
func (s *Splits) countsAndOffsets(op Operation) (counts, offsets []int64) {
	if op == AllGatherV {
		return s.RecvCounts, s.RecvOffsets
	}

	return s.SendCounts, s.SendOffsets
}

// Contiguous reports whether the parts of an AllGatherV or ReduceScatterV are adjacent and in group
// order. It returns false for AllToAllV.
func (s *Splits) Contiguous(op Operation) bool {
	if !op.SplitsOneBuffer() {
		return false
	}

	counts, offsets := s.countsAndOffsets(op)
	return slices.Equal(offsets, adjacentOffsets(counts))
}

// Total returns the sum of the counts for AllGatherV and ReduceScatterV, and otherwise 0.
func (s *Splits) Total(op Operation) int64 {
	if !op.SplitsOneBuffer() {
		return 0
	}

	counts, _ := s.countsAndOffsets(op)
	return int64(sumCounts(counts))
}

func sumCounts(counts []int64) uint64 {
	sum := uint64(0)
	for _, n := range counts {
		sum += uint64(n)
	}

	return sum
}

// CountOf returns the Call.Count of a rank. For AllToAllV, or if s has no such count, it is 0.
func (s *Splits) CountOf(op Operation, rank int) int64 {
	if !op.SplitsOneBuffer() {
		return 0
	}

	counts, _ := s.countsAndOffsets(op)
	if rank >= len(counts) {
		return 0
	}

	return counts[rank]
}

// lastPartEnd returns the number of elements that a buffer needs: the largest end of a nonempty
// part, or 0.
func lastPartEnd(counts, offsets []int64) int64 {
	end := int64(0)
	for i, count := range counts {
		if count > 0 {
			end = max(end, offsets[i]+count)
		}
	}

	return end
}

// Validate checks that the lists of divided buffers have one entry per rank, and that other lists
// are empty. Entries must be between 0 and MaxCount.
func (s *Splits) Validate(op Operation, ranks int) error {
	send, recv := op.Extents()
	for _, l := range []struct {
		name   string
		list   []int64
		buffer Extent
	}{
		{"send counts", s.SendCounts, send},
		{"send offsets", s.SendOffsets, send},
		{"receive counts", s.RecvCounts, recv},
		{"receive offsets", s.RecvOffsets, recv},
	} {
		wantLength := 0
		if l.buffer == BySplits {
			wantLength = ranks
		}

		if err := validateList(l.name, l.list, wantLength, ranks); err != nil {
			return err
		}
	}

	return nil
}

func validateList(name string, list []int64, wantLength, ranks int) error {
	if len(list) != wantLength {
		return invalidError("the list of %s has %d entries, want %d, in a group of %s",
			name, len(list), wantLength, Plural(ranks, "rank"))
	}

	for _, n := range list {
		if n < 0 || n > MaxCount {
			return invalidError("%d in the list of %s is not between 0 and %d", n, name, int64(MaxCount))
		}
	}

	return nil
}
