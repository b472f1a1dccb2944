package driver

import "symmem/event"

// Plan is a prepared call of one communicator. It is immutable, may be launched again and again,
// and is valid as long as its windows are.
type Plan interface {
	// Prepared returns the call; it must not be changed.
	Prepared() *Call
}

// Offer is a call that a communicator has resolved. Details of a path are computed when that path
// is first asked for, and then kept: Take reuses the choices of Refusal. An Offer belongs to one
// goroutine.
type Offer interface {
	// Refusal returns nil if the call can take a path, else an error that matches ErrUnsupported. The
	// answer depends on the operation, type, reduction and count, on whether the call names windows,
	// and on the alignment of its offsets in them, so all ranks that make the same call get the same
	// answer. For PathWindow it assumes that the call names windows. A path is refused if its
	// reduction would not give the bits of the group's Formula.
	Refusal(path Path) error
	// Take makes the plan of a path that does not refuse the call; digest becomes the plan's. It is
	// called once, and the offer is used up. It returns ErrOutOfRange where the path is PathWindow
	// and a buffer has no window of the group.
	Take(path Path, digest uint64) (Plan, error)
}

// Prepare makes the plan of a call whose Path and Digest are chosen.
func Prepare(c Communicator, call Call) (Plan, error) {
	offer := c.Offer(call)
	if err := offer.Refusal(call.Path); err != nil {
		return nil, err
	}
	return offer.Take(call.Path, call.Digest)
}

// Call is one collective call.
type Call struct {
	// Operation, DataType and ReduceOp say what to do; ReduceOp matters where one is needed.
	Operation Operation
	DataType  DataType
	ReduceOp  ReduceOp
	// Path selects how the call runs. Digest covers everything that must be equal on all ranks.
	// Offer.Take sets both.
	Path   Path
	Digest uint64
	// Root is the group rank of the root of Broadcast and Reduce, or the peer of Send and Recv; for
	// Recv it may be AnySource.
	Root int
	// Tag distinguishes messages between two ranks, from 0 to MaxTag: the k-th Send of a pair with a
	// tag matches the k-th Recv with that tag, in the order of each rank's calls, on any streams.
	Tag int
	// Count is in elements, not negative; 0 for AllToAllV.
	Count int64
	// Splits holds the counts and offsets of AllToAllV; nil for other operations.
	Splits *Splits
	// Arrived, if set, is called when a Recv has its message, with the group rank of the sender. It
	// runs on the stream's worker, so it must return soon and not call the backend. A panic in it
	// fails the group.
	Arrived func(source int) `json:"-"`
	// Send and Recv are this rank's buffers; Send may equal Recv (in place, as NCCL defines it).
	Send, Recv uintptr
	// SendWindow and RecvWindow are the windows that contain the buffers, or both nil if a buffer is
	// in no window. A plan of PathPlain has none. For AllToAllV, SendWindow may be set on some ranks
	// only: their peers then read the buffer in the window.
	SendWindow, RecvWindow Window `json:"-"`
	// Norm holds the additional arguments of AllReduceRMSNorm; nil for other operations.
	Norm *Norm `json:"-"`
	// Recorded is the call's place in a capture: see RecordedAs.
	Recorded Recorded
	// Keep holds what must stay reachable while the call is queued, such as a Go slice.
	Keep any `json:"-"`
}

// Spans returns the number of bytes that the call covers in its send and receive buffers, for a
// group of the given number of ranks. Broadcast and Reduce count both buffers on every rank: over
// windows, peers find the root's buffer by this rank's own offset.
func (c *Call) Spans(ranks int) (send, recv int64) {
	size := int64(c.DataType.Size())
	if c.Splits != nil {
		send, recv = c.Splits.spans()
		return send * size, recv * size
	}
	from, to := c.Operation.Extents()
	one := c.Count * size
	return from.Parts(ranks) * one, to.Parts(ranks) * one
}

// InPlace reports whether the call of a rank works in place, as NCCL defines it: on one buffer, or
// with the rank's own part of the larger buffer as the smaller one.
func (c *Call) InPlace(rank int) bool {
	own := uintptr(int64(rank) * c.Count * int64(c.DataType.Size()))
	switch send, recv := c.Operation.Extents(); {
	case send < recv && send == OnePart:
		return c.Send == c.Recv+own
	case send > recv && recv == OnePart:
		return c.Recv == c.Send+own
	default:
		return c.Send == c.Recv
	}
}

// ComparesFloats reports whether the call takes the minimum or maximum of floats, where a NaN of
// any rank wins. NCCL drops a NaN if another rank has a number.
func (c *Call) ComparesFloats() bool {
	return c.Operation.Reduces() && c.ReduceOp.Selects() && c.DataType.Float()
}

// SetPath sets the path and the digest, and removes windows from paths that do not use them.
// Offer.Take calls it.
func (c *Call) SetPath(path Path, digest uint64) {
	c.Path, c.Digest = path, digest
	if path == PathPlain && c.Operation.UsesWindows() {
		c.SendWindow, c.RecvWindow = nil, nil
	}
}

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
