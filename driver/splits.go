package driver

// Splits divides the buffers of an AllToAllV into one part for each rank of the group, in group
// order, by counts and offsets in elements.
type Splits struct {
	// SendCounts and SendOffsets divide Call.Send: part r is sent to rank r.
	SendCounts, SendOffsets []int64
	// RecvCounts and RecvOffsets divide Call.Recv: part r is received from rank r. It has as many
	// elements as rank r sends to this rank.
	RecvCounts, RecvOffsets []int64
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

// spans returns the number of elements that each of the two buffers must have.
func (s *Splits) spans() (send, recv int64) {
	return extent(s.SendCounts, s.SendOffsets), extent(s.RecvCounts, s.RecvOffsets)
}

// Validate returns an error if a list does not have one entry for each rank, or if a count or an
// offset is negative or larger than MaxCount. Call.Validate calls it. Code that adds up counts
// before there is a Call must call Validate first.
func (s *Splits) Validate(ranks int) error {
	for _, list := range [...][]int64{s.SendCounts, s.SendOffsets, s.RecvCounts, s.RecvOffsets} {
		if len(list) != ranks {
			return invalid("splits for %d ranks in a group of %d", len(list), ranks)
		}
		for _, n := range list {
			if n < 0 || n > MaxCount {
				return invalid("count or offset %d of splits is not between 0 and %d", n,
					int64(MaxCount))
			}
		}
	}
	return nil
}
