package driver

// Splits divides the buffers of an AllToAllV into one part for each rank of the group, in group
// order, by counts and offsets in elements.
type Splits struct {
	// SendCounts and SendOffsets divide Call.Send: part r is sent to rank r.
	SendCounts, SendOffsets []int64
	// RecvCounts and RecvOffsets divide Call.Recv: part r comes from rank r and has as many elements
	// as rank r's SendCounts lists for this rank.
	RecvCounts, RecvOffsets []int64
}

// reach returns how many elements from its begin on the parts of a buffer need.
func reach(counts, offsets []int64) (elements int64) {
	for i, n := range counts {
		if n > 0 {
			elements = max(elements, offsets[i]+n)
		}
	}
	return elements
}

// spans returns the elements that the call needs of its two buffers.
func (s *Splits) spans() (send, recv int64) {
	return reach(s.SendCounts, s.SendOffsets), reach(s.RecvCounts, s.RecvOffsets)
}

// Validate refuses lists of another length than the group, and counts or offsets that are negative
// or absurd. Call.Validate does it, too; who has to add up counts before there is a call asks
// first.
func (s *Splits) Validate(ranks int) error {
	for _, list := range [...][]int64{s.SendCounts, s.SendOffsets, s.RecvCounts, s.RecvOffsets} {
		if len(list) != ranks {
			return invalid("splits for %d ranks in a group of %d", len(list), ranks)
		}
		for _, n := range list {
			if n < 0 || n > MaxCount {
				return invalid("a count or offset of splits is %d, not between 0 and %d", n,
					int64(MaxCount))
			}
		}
	}
	return nil
}
