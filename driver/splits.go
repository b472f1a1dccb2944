package driver

import "slices"

// Splits divides a buffer, or both buffers of an AllToAllV, into one part for each rank of the
// group, in group order, by counts and offsets in elements.
type Splits struct {
	// SendCounts and SendOffsets divide Call.Send: part r is sent to rank r. They are nil for
	// AllGatherV.
	SendCounts, SendOffsets []int64
	// RecvCounts and RecvOffsets divide Call.Recv: part r is received from rank r. It has as many
	// elements as rank r sends to this rank. They are nil for ReduceScatterV.
	RecvCounts, RecvOffsets []int64
}

// list returns the counts and offsets of the buffer that AllGatherV or ReduceScatterV divides, or
// of the send buffer for AllToAllV.
func (s *Splits) list(o Operation) (counts, offsets []int64) {
	if o == AllGatherV {
		return s.RecvCounts, s.RecvOffsets
	}
	return s.SendCounts, s.SendOffsets
}

// WithOffsets returns the splits with offsets: lists of counts without offsets get those of
// contiguous parts, in group order. It returns s if nothing is missing, and nil for nil.
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

// contiguous returns the offsets of contiguous parts. The sums may be invalid if counts are.
func contiguous(counts []int64) (offsets []int64) {
	at := int64(0)
	for _, n := range counts {
		offsets = append(offsets, at)
		at += n
	}
	return offsets
}

// Total returns the number of elements of all parts of the buffer that AllGatherV or ReduceScatterV
// divides, which is the same on every rank. It returns 0 for other operations.
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

// OwnCount returns the Call.Count that the splits of an operation imply for a rank. The lists may
// be invalid.
func (s *Splits) OwnCount(o Operation, rank int) int64 {
	if counts, _ := s.list(o); o.Uneven() && rank < len(counts) {
		return counts[rank]
	}
	return 0
}

// extent returns the number of elements of a buffer up to the end of its last part.
func extent(counts, offsets []int64) (elements int64) {
	for i, n := range counts {
		if n > 0 {
			elements = max(elements, offsets[i]+n)
		}
	}
	return elements
}

// Validate returns an error if the lists are not those of the operation, if a list does not have
// one entry for each rank, or if a count or an offset is negative or larger than MaxCount.
// Call.Validate calls it. Code that adds up counts before there is a Call must call Validate first.
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

// validateList checks one list of splits.
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
