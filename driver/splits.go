package driver

import "slices"

// Splits divides a buffer into parts, one for each rank, that can differ in size and have gaps
// between them. For example, an AllGatherV of 2 elements of rank 0 and 3 elements of rank 1, with a
// gap of 2 elements, has RecvCounts 2, 3 and RecvOffsets 0, 4. An AllToAllV divides both buffers.
type Splits struct {
	// These are in elements, by group rank.
	SendCounts, SendOffsets []int64 // nil for AllGatherV
	RecvCounts, RecvOffsets []int64 // nil for ReduceScatterV
}

// WithOffsets returns a copy of s in which missing offsets are those of adjacent parts in group
// order. It returns s if no offsets are missing or s is nil.
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

// countsAndOffsets returns the lists of the receive buffer for AllGatherV, and otherwise those of
// the send buffer.
func (s *Splits) countsAndOffsets(op Operation) (counts, offsets []int64) {
	if op == AllGatherV {
		return s.RecvCounts, s.RecvOffsets
	}

	return s.SendCounts, s.SendOffsets
}

// Contiguous reports whether the parts of an AllGatherV or ReduceScatterV are adjacent and in group
// order. It returns false for AllToAllV.
func (s *Splits) Contiguous(op Operation) bool {
	counts, offsets := s.countsAndOffsets(op)
	return op.SplitsOneBuffer() && slices.Equal(offsets, adjacentOffsets(counts))
}

// Total returns the sum of the counts for AllGatherV and ReduceScatterV, and 0 for others.
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

// CountOf returns the Call.Count of a rank, which is 0 for AllToAllV. If s is invalid and has no
// count for the rank, CountOf returns 0.
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

// Validate checks that the lists of each buffer that the operation divides have one entry per rank,
// and that the other lists are empty. Entries must be between 0 and MaxCount.
func (s *Splits) Validate(op Operation, ranks int) error {
	send, recv := op.Extents()
	if err := validateLists(s.SendCounts, s.SendOffsets, send, ranks); err != nil {
		return err
	}

	return validateLists(s.RecvCounts, s.RecvOffsets, recv, ranks)
}

// validateLists checks the lists of a buffer, which is divided if extent is BySplits.
func validateLists(counts, offsets []int64, extent Extent, ranks int) error {
	wantLength := 0
	if extent == BySplits {
		wantLength = ranks
	}

	if err := validateList(counts, wantLength, ranks); err != nil {
		return err
	}

	return validateList(offsets, wantLength, ranks)
}

func validateList(list []int64, wantLength, ranks int) error {
	if len(list) != wantLength {
		return invalidError("a list of counts or offsets has %d entries, want %d, in a group of %s",
			len(list), wantLength, Plural(ranks, "rank"))
	}

	for _, n := range list {
		if n < 0 || n > MaxCount {
			return invalidError("count or offset %d is not between 0 and %d", n, int64(MaxCount))
		}
	}

	return nil
}
