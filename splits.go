package symmem

import (
	"slices"

	"symmem/driver"
)

// Splits divides a buffer (for AllToAllV, both buffers) into a part for each rank, in group order.
// Counts and offsets are in elements. Without offsets, the parts are contiguous. See
// [driver.Splits].
type Splits = driver.Splits

// Contiguous returns the splits of buffers with contiguous parts.
func Contiguous(sendCounts, recvCounts []int64) Splits {
	s := Splits{SendCounts: sendCounts, RecvCounts: recvCounts}
	return *s.WithOffsets()
}

// evenSplits gives every rank the same count, or returns nil for other operations.
func evenSplits(o Operation, count int64, ranks int) *Splits {
	counts := slices.Repeat([]int64{count}, ranks)
	switch o {
	case OpAllToAllV:
		return &Splits{SendCounts: counts, RecvCounts: counts}
	case OpAllGatherV:
		return &Splits{RecvCounts: counts}
	case OpReduceScatterV:
		return &Splits{SendCounts: counts}
	default:
		return nil
	}
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
