package driver

import "slices"

// Splits divides a buffer, or both buffers of an AllToAllV, into one part per rank. Counts and
// offsets are in elements and indexed by group rank.
type Splits struct {
	SendCounts, SendOffsets []int64 // of the send buffer's parts; nil for AllGatherV
	RecvCounts, RecvOffsets []int64 // of the receive buffer's parts; nil for ReduceScatterV
}

// countsAndOffsets returns the lists of the divided buffer or, for AllToAllV, of the send buffer.
func (s *Splits) countsAndOffsets(o Operation) (counts, offsets []int64) {
	if o == AllGatherV {
		return s.RecvCounts, s.RecvOffsets
	}
	return s.SendCounts, s.SendOffsets
}

// WithOffsets returns s or, if s has counts without offsets, a copy with offsets that make the
// parts adjacent, in group order. s may be nil.
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

func contiguousOffsets(counts []int64) (offsets []int64) {
	end := int64(0)
	for _, n := range counts {
		offsets = append(offsets, end)
		end += n
	}
	return offsets
}

// Total returns the sum of the counts for AllGatherV and ReduceScatterV, and 0 for others.
func (s *Splits) Total(o Operation) int64 {
	counts, _ := s.countsAndOffsets(o)
	if !o.SplitsOneBuffer() {
		counts = nil
	}
	return int64(sumCounts(counts))
}

// Contiguous reports whether the parts of the divided buffer are adjacent and in group order. It
// returns false for AllToAllV.
func (s *Splits) Contiguous(o Operation) bool {
	counts, offsets := s.countsAndOffsets(o)
	return o.SplitsOneBuffer() && slices.Equal(offsets, contiguousOffsets(counts))
}

// CountOf returns the Call.Count of a rank's call with s, which may be invalid. It is 0 for
// AllToAllV, and if s has no count for the rank.
func (s *Splits) CountOf(o Operation, rank int) int64 {
	if counts, _ := s.countsAndOffsets(o); o.SplitsOneBuffer() && rank < len(counts) {
		return counts[rank]
	}
	return 0
}

// lastPartEnd returns the end of the last part that is not empty, or 0 if there is none.
func lastPartEnd(counts, offsets []int64) (elements int64) {
	for i, n := range counts {
		if n > 0 {
			elements = max(elements, offsets[i]+n)
		}
	}
	return elements
}

// Validate returns an error unless each list that the operation uses has one entry per rank, each
// other list is empty, and all entries are between 0 and MaxCount.
func (s *Splits) Validate(o Operation, ranks int) error {
	send, recv := o.Extents()
	for _, buffer := range [...]struct {
		extent Extent
		lists  [2][]int64
	}{
		{send, [2][]int64{s.SendCounts, s.SendOffsets}},
		{recv, [2][]int64{s.RecvCounts, s.RecvOffsets}},
	} {
		wantLength := 0
		if buffer.extent == BySplits {
			wantLength = ranks
		}
		for _, list := range buffer.lists {
			if err := validateList(list, wantLength, ranks); err != nil {
				return err
			}
		}
	}
	return nil
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
