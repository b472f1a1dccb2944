package symmem

import (
	"slices"

	"symmem/driver"
)

// Splits divides the buffers of an AllToAllV into one part for each rank of the group, in group
// order, by counts and offsets in elements; see [driver.Splits].
type Splits = driver.Splits

// Contiguous returns the splits of buffers whose parts are contiguous, in group order.
func Contiguous(sendCounts, recvCounts []int64) Splits {
	return Splits{
		SendCounts: sendCounts, SendOffsets: offsetsOf(sendCounts),
		RecvCounts: recvCounts, RecvOffsets: offsetsOf(recvCounts),
	}
}

func offsetsOf(counts []int64) []int64 {
	offsets, at := make([]int64, len(counts)), int64(0)
	for i, n := range counts {
		offsets[i] = at
		at += n
	}
	return offsets
}

// evenSplits returns splits with the same count for every rank, as in AllToAll.
func evenSplits(count int64, ranks int) *Splits {
	s := Contiguous(slices.Repeat([]int64{count}, ranks), slices.Repeat([]int64{count}, ranks))
	return &s
}

func sameSplits(a, b *Splits) bool {
	if a == nil || b == nil {
		return a == b
	}
	return slices.Equal(a.SendCounts, b.SendCounts) && slices.Equal(a.RecvCounts, b.RecvCounts) &&
		slices.Equal(a.SendOffsets, b.SendOffsets) && slices.Equal(a.RecvOffsets, b.RecvOffsets)
}

func cloneSplits(s *Splits) *Splits {
	return &Splits{
		SendCounts: slices.Clone(s.SendCounts), SendOffsets: slices.Clone(s.SendOffsets),
		RecvCounts: slices.Clone(s.RecvCounts), RecvOffsets: slices.Clone(s.RecvOffsets),
	}
}
