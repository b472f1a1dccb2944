package driver

import "slices"

// Splits divides a buffer into one part for each rank of the group. For an AllToAllV, it divides
// both buffers. Counts and offsets are in elements and indexed by group rank.
type Splits struct {
	// SendCounts and SendOffsets divide Call.Send: part r is sent to rank r. They are nil for
	// AllGatherV.
	SendCounts, SendOffsets []int64
	// RecvCounts and RecvOffsets divide Call.Recv: part r is received from rank r, and its count is
	// the number of elements that rank r sends to this rank. They are nil for ReduceScatterV.
	RecvCounts, RecvOffsets []int64
}

// list returns the counts and offsets of the buffer that AllGatherV or ReduceScatterV divides.
// For AllToAllV, which divides both buffers, it returns those of the send buffer.
func (s *Splits) list(o Operation) (counts, offsets []int64) {
	if o == AllGatherV {
		return s.RecvCounts, s.RecvOffsets
	}
	return s.SendCounts, s.SendOffsets
}

// WithOffsets returns a copy of s in which missing offsets are filled in so that the parts are
// contiguous and in group order. It returns s itself if no offsets are missing or if s is nil.
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

// contiguous returns the offsets of contiguous parts with the given counts. The counts need not be
// valid, so the offsets may overflow.
func contiguous(counts []int64) (offsets []int64) {
	end := int64(0)
	for _, n := range counts {
		offsets = append(offsets, end)
		end += n
	}
	return offsets
}

// Total returns the total number of elements in the buffer that AllGatherV or ReduceScatterV
// divides. It is the same on every rank. For other operations, Total returns 0.
func (s *Splits) Total(o Operation) int64 {
	counts, _ := s.list(o)
	if !o.Uneven() {
		counts = nil
	}
	return int64(total(counts))
}

// Contiguous reports whether the parts of the buffer that AllGatherV or ReduceScatterV divides are
// contiguous and in group order.
func (s *Splits) Contiguous(o Operation) bool {
	counts, offsets := s.list(o)
	return o.Uneven() && slices.Equal(offsets, contiguous(counts))
}

// OwnCount returns the Call.Count that the splits imply for a rank. It may be called before
// Validate.
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

// Validate returns an error unless exactly the lists that the operation uses are set, each of them
// has one entry per rank, and all counts and offsets are between 0 and MaxCount. Call.Validate
// calls it, so callers need it only if they add up counts before they have a Call.
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
		return invalid("splits for %d ranks in a group of %d; want %d", len(list), ranks, want)
	}
	for _, n := range list {
		if n < 0 || n > MaxCount {
			return invalid("count or offset %d of splits is not between 0 and %d", n, int64(MaxCount))
		}
	}
	return nil
}
