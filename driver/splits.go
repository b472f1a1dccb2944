package driver

import "slices"

// Splits divides a buffer, or both buffers for AllToAllV, into one part for each rank. Counts and
// offsets are in elements and indexed by group rank.
type Splits struct {
	// SendCounts and SendOffsets divide Call.Send. They are nil for AllGatherV.
	SendCounts, SendOffsets []int64
	// RecvCounts and RecvOffsets divide Call.Recv. They are nil for ReduceScatterV.
	RecvCounts, RecvOffsets []int64
}

// list returns the counts and offsets of the buffer that is divided, or of the send buffer for
// AllToAllV.
func (s *Splits) list(o Operation) (counts, offsets []int64) {
	if o == AllGatherV {
		return s.RecvCounts, s.RecvOffsets
	}
	return s.SendCounts, s.SendOffsets
}

// WithOffsets returns s with missing offsets filled in, so that parts are contiguous and in group
// order. It does not change s.
func (s *Splits) WithOffsets() *Splits {
	if s == nil || (s.SendCounts == nil || s.SendOffsets != nil) &&
		(s.RecvCounts == nil || s.RecvOffsets != nil) {
		return s
	}
	full := *s
	if s.SendOffsets == nil {
		full.SendOffsets = contiguous(s.SendCounts)
	}
	if s.RecvOffsets == nil {
		full.RecvOffsets = contiguous(s.RecvCounts)
	}
	return &full
}

// contiguous returns the offsets of contiguous parts. The offsets may overflow if counts are
// invalid.
func contiguous(counts []int64) (offsets []int64) {
	end := int64(0)
	for _, n := range counts {
		offsets = append(offsets, end)
		end += n
	}
	return offsets
}

// Total returns the number of elements in the buffer that AllGatherV or ReduceScatterV divides, or
// 0 for other operations.
func (s *Splits) Total(o Operation) int64 {
	counts, _ := s.list(o)
	if !o.Uneven() {
		counts = nil
	}
	return int64(total(counts))
}

// Contiguous reports whether the parts in AllGatherV or ReduceScatterV are contiguous and in group
// order.
func (s *Splits) Contiguous(o Operation) bool {
	counts, offsets := s.list(o)
	return o.Uneven() && slices.Equal(offsets, contiguous(counts))
}

// OwnCount returns the Call.Count that the splits, which may be invalid, imply for a rank.
func (s *Splits) OwnCount(o Operation, rank int) int64 {
	if counts, _ := s.list(o); o.Uneven() && rank < len(counts) {
		return counts[rank]
	}
	return 0
}

// extent returns the number of elements from the start of a buffer to the end of the last part.
func extent(counts, offsets []int64) (elements int64) {
	for i, n := range counts {
		if n > 0 {
			elements = max(elements, offsets[i]+n)
		}
	}
	return elements
}

// Validate returns an error unless exactly the lists that the operation uses are set, each has one
// entry per rank, and all counts and offsets are between 0 and MaxCount.
func (s *Splits) Validate(o Operation, ranks int) error {
	send, recv := o.Extents()
	for _, half := range [...]struct {
		extent Extent
		lists  [2][]int64
	}{
		{send, [2][]int64{s.SendCounts, s.SendOffsets}},
		{recv, [2][]int64{s.RecvCounts, s.RecvOffsets}},
	} {
		want := 0
		if half.extent == BySplits {
			want = ranks
		}
		for _, list := range half.lists {
			if err := validateList(list, want, ranks); err != nil {
				return err
			}
		}
	}
	return nil
}

func validateList(list []int64, want, ranks int) error {
	if len(list) != want {
		return invalid("a list of splits has %d entries in a group of %d ranks; want %d", len(list),
			ranks, want)
	}
	for _, n := range list {
		if n < 0 || n > MaxCount {
			return invalid("count or offset %d of splits is not between 0 and %d", n, int64(MaxCount))
		}
	}
	return nil
}
