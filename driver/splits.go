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

// reach returns the number of elements from the start of a buffer to the end of its last part.
func reach(counts, offsets []int64) (elements int64) {
	for i, n := range counts {
		if n > 0 {
			elements = max(elements, offsets[i]+n)
		}
	}
	return elements
}

// spans returns the numbers of elements that the call covers in its two buffers.
func (s *Splits) spans() (send, recv int64) {
	return reach(s.SendCounts, s.SendOffsets), reach(s.RecvCounts, s.RecvOffsets)
}

// Validate refuses lists whose length differs from the group's, and counts or offsets that are
// negative or above MaxCount. Call.Validate does so, too; code that adds up counts before it makes
// a Call validates them first.
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
