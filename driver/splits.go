package driver

import "slices"

// Splits divides a buffer into one part for each rank. The parts can differ in size. For example,
// an AllGatherV collects 2 elements of rank 0 and 3 elements of rank 1. In the receive buffer, the
// parts begin at the elements 0 and 4:
//
//	RecvCounts  = 2, 3
//	RecvOffsets = 0, 4
//
// An AllToAllV divides both buffers. Counts and offsets are in elements, by group rank.
type Splits struct {
	SendCounts, SendOffsets []int64 // of the send buffer's parts; nil for AllGatherV
	RecvCounts, RecvOffsets []int64 // of the receive buffer's parts; nil for ReduceScatterV
}

// WithOffsets returns a copy of s with the missing offsets. They make the parts adjacent, in group
// order. If s is nil or no offsets are missing, it returns s.
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
	if s.SendOffsets == nil {
		filled.SendOffsets = adjacentOffsets(s.SendCounts)
	}

	if s.RecvOffsets == nil {
		filled.RecvOffsets = adjacentOffsets(s.RecvCounts)
	}

	return &filled
}

// adjacentOffsets returns the offsets of adjacent parts. It returns nil if there are no counts.
func adjacentOffsets(counts []int64) []int64 {
	var offsets []int64
	end := int64(0) // of the parts so far
	for _, n := range counts {
		offsets = append(offsets, end)
		end += n
	}

	return offsets
}

// countsAndOffsets returns the lists of the divided buffer. For AllToAllV, which divides both
// buffers, it returns the lists of the send buffer.
func (s *Splits) countsAndOffsets(o Operation) (counts, offsets []int64) {
	if o == AllGatherV {
		return s.RecvCounts, s.RecvOffsets
	}

	return s.SendCounts, s.SendOffsets
}

// Contiguous reports whether the parts of the divided buffer are adjacent and in group order. It
// returns false for AllToAllV.
func (s *Splits) Contiguous(o Operation) bool {
	counts, offsets := s.countsAndOffsets(o)
	return o.SplitsOneBuffer() && slices.Equal(offsets, adjacentOffsets(counts))
}

// Total returns the sum of the counts for AllGatherV and ReduceScatterV, and 0 for others.
func (s *Splits) Total(o Operation) int64 {
	if !o.SplitsOneBuffer() {
		return 0
	}

	counts, _ := s.countsAndOffsets(o)
	return int64(sumCounts(counts))
}

// sumCounts returns the sum of counts.
func sumCounts(counts []int64) uint64 {
	sum := uint64(0)
	for _, n := range counts {
		sum += uint64(n)
	}

	return sum
}

// CountOf returns the Call.Count of a rank's call with s. It returns 0 for AllToAllV. s may be
// invalid: if it has no count for the rank, CountOf returns 0.
func (s *Splits) CountOf(o Operation, rank int) int64 {
	if !o.SplitsOneBuffer() {
		return 0
	}

	counts, _ := s.countsAndOffsets(o)
	if rank >= len(counts) {
		return 0
	}

	return counts[rank]
}

// lastPartEnd returns the largest end of a part that is not empty, or 0 if all are empty. It is the
// number of elements that a buffer needs.
func lastPartEnd(counts, offsets []int64) int64 {
	last := int64(0)
	for i, n := range counts {
		if n > 0 {
			last = max(last, offsets[i]+n)
		}
	}

	return last
}

// Validate returns an error unless each list that the operation uses has one entry per rank, each
// other list is empty, and all entries are between 0 and MaxCount.
func (s *Splits) Validate(o Operation, ranks int) error {
	send, recv := o.Extents()
	if err := validateLists(s.SendCounts, s.SendOffsets, send, ranks); err != nil {
		return err
	}

	return validateLists(s.RecvCounts, s.RecvOffsets, recv, ranks)
}

// validateLists checks the lists of one buffer. The operation uses them if extent is BySplits.
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

// validateList checks the length and the entries of a list.
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
