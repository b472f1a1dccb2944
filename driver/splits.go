package driver

import "slices"

// Splits divides a buffer, or both buffers of an AllToAllV, into one part per rank. Counts and
// offsets are in elements and indexed by group rank.
type Splits struct {
	SendCounts, SendOffsets []int64 // of the send buffer's parts; nil for AllGatherV
	RecvCounts, RecvOffsets []int64 // of the receive buffer's parts; nil for ReduceScatterV
}

// countsAndOffsets returns the lists of the divided buffer. For AllToAllV, which divides both
// buffers, it returns the lists of the send buffer.
func (s *Splits) countsAndOffsets(o Operation) (counts, offsets []int64) {
	if o == AllGatherV {
		return s.RecvCounts, s.RecvOffsets
	}

	return s.SendCounts, s.SendOffsets
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
		filled.SendOffsets = contiguousOffsets(s.SendCounts)
	}

	if s.RecvOffsets == nil {
		filled.RecvOffsets = contiguousOffsets(s.RecvCounts)
	}

	return &filled
}

// contiguousOffsets returns the offsets of adjacent parts. It returns nil for a nil list.
func contiguousOffsets(counts []int64) []int64 {
	var offsets []int64
	end := int64(0) // of the parts so far
	for _, n := range counts {
		offsets = append(offsets, end)
		end += n
	}

	return offsets
}

// Total returns the sum of the counts for AllGatherV and ReduceScatterV, and 0 for others.
func (s *Splits) Total(o Operation) int64 {
	if !o.SplitsOneBuffer() {
		return 0
	}

	counts, _ := s.countsAndOffsets(o)
	return int64(sumCounts(counts))
}

// Contiguous reports whether the parts of the divided buffer are adjacent and in group order. It
// returns false for AllToAllV.
func (s *Splits) Contiguous(o Operation) bool {
	counts, offsets := s.countsAndOffsets(o)
	return o.SplitsOneBuffer() && slices.Equal(offsets, contiguousOffsets(counts))
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
