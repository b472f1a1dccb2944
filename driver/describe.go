package driver

import "symmem/event"

// Describe describes the call for errors, events and comparisons between ranks, without the places
// of its buffers and the arguments of a norm. Root is the peer of a Send or Recv.
func (c *Call) Describe() event.Call {
	op := c.Operation
	d := event.Call{
		Operation: op.String(), Path: c.Path.String(), DataType: c.DataType.String(), Root: -1,
		Count: uint64(c.Count), SendSegment: -1, RecvSegment: -1,
		Capture: c.Recorded.Capture, CaptureCall: c.Recorded.Call,
	}
	if op.Reduces() {
		d.ReduceOp = c.ReduceOp.String()
	}
	if op.Rooted() || op.PointToPoint() {
		d.Root = c.Root
	}
	if op == Barrier {
		d.DataType, d.Count = "", 0
	}
	return d
}
