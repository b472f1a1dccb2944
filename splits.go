package symmem

import (
	"context"
	"slices"

	"symmem/driver"
)

// Splits says how the buffers of an AllToAllV are cut: for each rank of the group, in group order,
// a count and an offset, both in elements.
type Splits = driver.Splits

// AllToAllV sends a part of send to each rank and gathers a part of each into recv, as splits says.
// Parts may have any size, also none, and different ones on each rank; those of recv do not
// overlap. What a rank sends to another is what that one expects of it, else no buffer is written
// and all ranks get a MessageError that names the pairs (with CheckEvery; else the ranks that are
// concerned). send may be recv. It is a collective like the others, but registers no memory.
// AllToAll is another operation, also where all counts are equal. The lists are copied.
func (g *Group) AllToAllV(
	ctx context.Context, send, recv Memory, splits Splits, t DataType, s *Stream,
) error {
	return g.run(ctx, s, &request{
		operation: driver.AllToAllV, send: send, recv: recv, dataType: t,
	}, &extras{splits: &splits})
}

// Contiguous makes the splits of buffers whose parts lie one behind the other, in group order.
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

// evenSplits are those of an AllToAll.
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

// sendWindow is the window that the send buffer of an AllToAllV lies in, or nil.
func (g *Group) sendWindow(call *driver.Call) driver.Window {
	bytes, _ := call.Spans(len(g.ranks))
	if place, ok := g.table.Load().find(call.Send, bytes); ok && bytes > 0 {
		return place.window
	}
	return nil
}
