package symmem

import "context"

// Call is a collective as a value, for callers that pass calls on. The methods of Group say what
// the operations mean.
type Call struct {
	// Operation, Type and Op say what to do; Op matters for reductions alone.
	Operation Operation
	Type      DataType
	Op        ReduceOp
	// Root is the root, or the peer of Send and Recv, AnySource included.
	Root int
	// Tag is that of Send and Recv.
	Tag int
	// Count is in elements; 0 for AllToAllV.
	Count int64
	// Splits is what AllToAllV has in addition.
	Splits *Splits
	// Arrived, if set, is called when a Recv has its message, with the rank of the group that sent
	// it. It runs on the way of the stream's work: it returns soon and does not call into symmem.
	Arrived func(source int)
	// Send and Recv are this rank's buffers.
	Send, Recv Memory
	// At is the place for which the call is made. Where ranks call different collectives the error
	// has the place of the latest call of each.
	At Site
	// Path is who chooses the path of this call alone: PathPlain, PathWindow or PathDirect; else
	// the group's choice stands. It is the same on all ranks.
	Path PathChoice
}

// Do queues a collective. See AllReduce and its like for errors.
func (g *Group) Do(ctx context.Context, c Call, s *Stream) error {
	if c.Path < PathDefault || c.Path > PathDirect {
		return invalid("%v on group %s: path choice %d", c.Operation, g.id, c.Path)
	}
	if c.Path == PathAuto {
		c.Path = PathDefault
	}
	if c.At != 0 {
		g.site.Store(uint32(c.At))
	}
	return g.run(ctx, s, &request{
		operation: c.Operation, dataType: c.Type, reduceOp: c.Op, root: c.Root, count: c.Count,
		send: c.Send, recv: c.Recv, choice: c.Path,
	}, &extras{tag: c.Tag, splits: c.Splits, arrived: c.Arrived})
}
