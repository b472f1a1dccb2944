package driver

import (
	"math"
	"strconv"

	"symmem/event"
	"symmem/internal/reduce"
)

// Call is one collective, Send or Recv of a rank.
//
// For example, ranks 0 and 1 make a call of AllGather with 4 elements of Float32. The Send of each
// rank has one part of 4 elements, that is, 16 bytes. The Recv of each rank has two parts, one from
// each rank.
//
// A call can run on different paths. For example, PathPlain works on any memory, and PathWindow
// requires windows: memory that all ranks have registered.
type Call struct {
	Operation Operation
	DataType  DataType
	ReduceOp  ReduceOp
	// Factor is the factor of a PremulSum, the same on all ranks. It is 0 for other reductions.
	Factor float64
	// Path selects how the call runs. Digest is a hash of everything that must be the same on all
	// ranks. Offer.Take sets both.
	Path   Path
	Digest uint64
	// Root is the group rank of the root or, for Send and Recv, of the peer. For Recv, it may be
	// AnySource.
	Root int
	// Tag distinguishes messages between two ranks. The k-th Send with a tag matches the k-th Recv
	// with the tag, counted on all streams together.
	Tag int
	// Count is the number of elements of a part. A buffer without parts has Count elements. For
	// AllToAllV, Count is 0. For AllGatherV and ReduceScatterV, it is this rank's count in Splits.
	Count  int64
	Splits *Splits // only for AllToAllV, AllGatherV and ReduceScatterV, whose parts differ in size
	// Arrived, if set, is called with the sender's group rank when a Recv has received its message,
	// before later work on the stream. It must not call the backend. If it panics, the group fails.
	Arrived    func(source int) `json:"-"`
	Send, Recv uintptr          // addresses of this rank's buffers
	// SendWindow and RecvWindow are the windows that contain Send and Recv. Both are nil on PathPlain,
	// and if one of the buffers is outside all windows. Some operations use only one window:
	// AllGatherV and ReduceScatterV that of the buffer with parts, Dispatch RecvWindow, Combine
	// SendWindow, and AllToAllV, even on PathPlain, SendWindow.
	SendWindow, RecvWindow Window `json:"-"`
	Norm                   *Norm  `json:"-"` // only for operations with HasNorm
	Route                  *Route `json:"-"` // only for Dispatch and Combine
	// List describes all calls if this call represents several; see ListOf. Otherwise, it is "".
	List     string
	Recorded Recorded // position in a capture
	// Keep is an object, such as a Go slice, that stays reachable while the call is queued.
	Keep any `json:"-"`
}

// Offer prepares one call of a communicator for a path. It is not safe for concurrent use.
type Offer interface {
	// Refusal returns nil if the path supports the call, and otherwise an error that matches
	// ErrUnsupported. It refuses a path whose results could differ from those of the group's
	// Formula.
	//
	// All ranks get the same answer, so that they choose the same path without communicating. It
	// depends only on the operation, the type, the reduction, the count, the presence of windows, and
	// the alignment of the offsets in the windows. For PathWindow, Refusal assumes that SendWindow
	// and RecvWindow are set.
	Refusal(path Path) error
	// Take returns a plan for a path that Refusal does not refuse, with the given Call.Digest. The
	// Offer must not be used again. On PathWindow, Take returns ErrOutOfRange if a buffer is outside
	// the group's windows.
	Take(path Path, digest uint64) (Plan, error)
}

// Plan is a prepared call of one communicator. It is immutable, can be launched any number of
// times, and is valid until one of the call's windows is deregistered.
type Plan interface {
	// Prepared returns the call, which must not be changed.
	Prepared() *Call
}

// Prepare returns a plan for call on call.Path, with call.Digest.
func Prepare(c Communicator, call Call) (Plan, error) {
	offer := c.Offer(call)
	if err := offer.Refusal(call.Path); err != nil {
		return nil, err
	}

	return offer.Take(call.Path, call.Digest)
}

// SetPath sets the path and the digest, and clears windows that the path does not use.
func (c *Call) SetPath(path Path, digest uint64) {
	c.Path = path
	c.Digest = digest
	// An AllToAllV has no direct path, and uses a window even on PathPlain.
	hasDirectPath := c.Operation.SupportsPath(PathDirect)
	if path == PathPlain && hasDirectPath {
		c.SendWindow = nil
		c.RecvWindow = nil
	}
}

// Spans returns the sizes in bytes of one rank's send and receive buffers. In Broadcast and
// Reduce, every rank has both buffers.
func (c *Call) Spans(ranks, rank int) (send, recv int64) {
	if c.Route != nil {
		return c.Route.sendAndRecvBytes(c, ranks)
	}

	size := int64(c.DataType.Size())
	sendExtent, recvExtent := c.Operation.Extents()
	send = c.elementCount(sendExtent, ranks, rank) * size
	recv = c.elementCount(recvExtent, ranks, rank) * size
	if c.Splits == nil {
		return send, recv
	}

	if sendExtent == BySplits {
		send = lastPartEnd(c.Splits.SendCounts, c.Splits.SendOffsets) * size
	}

	if recvExtent == BySplits {
		recv = lastPartEnd(c.Splits.RecvCounts, c.Splits.RecvOffsets) * size
	}

	return send, recv
}

// elementCount returns the number of elements of a rank's buffer. It does not support BySplits.
func (c *Call) elementCount(e Extent, ranks, rank int) int64 {
	if e == AllPartsOfRoot && rank != c.Root {
		return 0
	}

	return e.Parts(ranks) * c.Count
}

// OtherSpans returns the buffers that a call uses in addition to Send and Recv.
func (c *Call) OtherSpans() [4]Span {
	if c.Route != nil {
		return c.Route.Spans(c.Operation)
	}

	return c.Norm.Spans() // empty spans if Norm is nil
}

// InPlace reports whether both buffers are the same, or the smaller buffer is the rank's part of
// the larger one. NCCL permits no other overlap.
func (c *Call) InPlace(rank int) bool {
	ownOffset := c.partOffset(rank)
	send, recv := c.Operation.Extents()
	switch {
	case send == OnePart && recv > OnePart: // Recv has a part for each rank
		return c.Send == c.Recv+ownOffset
	case recv == OnePart && send > OnePart: // Send has a part for each rank
		return c.Recv == c.Send+ownOffset
	default:
		return c.Send == c.Recv
	}
}

// partOffset returns the offset in bytes of a rank's part in a buffer with parts.
func (c *Call) partOffset(rank int) uintptr {
	elements := int64(rank) * c.Count
	if c.Splits != nil {
		_, offsets := c.Splits.countsAndOffsets(c.Operation)
		if rank < len(offsets) {
			elements = offsets[rank]
		}
	}

	return uintptr(elements * int64(c.DataType.Size()))
}

// IsFloatMinOrMax reports whether the call computes a minimum or maximum of floats, in which NCCL
// ignores NaNs.
func (c *Call) IsFloatMinOrMax() bool {
	return c.Operation.Reduces() && c.ReduceOp.IsMinOrMax() && c.DataType.Float()
}

// FactorBits returns the bits of the factor in the call's data type.
func (c *Call) FactorBits() uint64 {
	switch c.DataType {
	case Float64:
		return math.Float64bits(c.Factor)
	case Float16:
		return uint64(reduce.Float16Bits(float32(c.Factor)))
	case BFloat16:
		return uint64(reduce.BFloat16Bits(float32(c.Factor)))
	default:
		return uint64(math.Float32bits(float32(c.Factor)))
	}
}

// Describe returns a description of the call without its addresses and the arguments of a norm.
func (c *Call) Describe() event.Call {
	const none = -1
	op := c.Operation
	d := event.Call{
		Operation: op.String(), Path: c.Path.String(), DataType: c.DataType.String(), Root: none,
		Count: uint64(c.Count), SendSegment: none, RecvSegment: none,
		Capture: c.Recorded.Capture, CaptureCall: c.Recorded.Call, List: c.List,
	}
	if op.Reduces() {
		d.ReduceOp = c.describeReduction()
	}

	if op.SplitsOneBuffer() && c.Splits != nil {
		counts, _ := c.Splits.countsAndOffsets(op)
		d.Counts = event.CountsText(counts)
		d.Count = sumCounts(counts)
	}

	if op.HasRoot() || op.PointToPoint() {
		d.Root = c.Root
	}

	if op == Barrier { // has no data
		d.DataType = ""
		d.Count = 0
	}

	return d
}

// describeReduction returns the name of the reduction, with the factor if it has one, as in
// "0.5*sum". At most, the text has 28 bytes, as in "-1.2345678901234567e-308*sum". An encoded
// event.Call has room for 32.
func (c *Call) describeReduction() string {
	if !c.ReduceOp.HasFactor() {
		return c.ReduceOp.String()
	}

	const shortest, bits = -1, 64
	return strconv.FormatFloat(c.Factor, 'g', shortest, bits) + "*sum"
}
