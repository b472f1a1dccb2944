package driver

import (
	"math"
	"strconv"

	"symmem/event"
	"symmem/internal/reduce"
)

// Plan is a prepared call of one communicator. It is immutable, can be launched any number of
// times, and is valid until one of the call's windows is deregistered.
type Plan interface {
	// Prepared returns the call, which must not be changed.
	Prepared() *Call
}

// Offer prepares one call of a communicator for a path. It is not safe for concurrent use.
type Offer interface {
	// Refusal returns nil if the path supports the call, and otherwise an error that matches
	// ErrUnsupported. It refuses a path whose results could differ from those of the group's
	// Formula. Refusal returns the same on all ranks: it depends only on the operation, type,
	// reduction, count, presence of windows, and alignment of the offsets in the windows. For
	// PathWindow, Refusal assumes that SendWindow and RecvWindow are set.
	Refusal(path Path) error
	// Take returns a plan for a path that Refusal does not refuse. The Offer must not be used after
	// that. On PathWindow, Take returns ErrOutOfRange if a buffer is outside the group's windows.
	Take(path Path, digest uint64) (Plan, error)
}

// Prepare returns a plan for call on call.Path, with call.Digest.
func Prepare(c Communicator, call Call) (Plan, error) {
	offer := c.Offer(call)
	if err := offer.Refusal(call.Path); err != nil {
		return nil, err
	}
	return offer.Take(call.Path, call.Digest)
}

// Call is one collective, Send or Recv of a rank.
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
	// Count is the number of elements of a buffer, or of a part if a buffer has parts. For
	// AllToAllV, it is 0. For AllGatherV and ReduceScatterV, it is this rank's count in Splits.
	Count  int64
	Splits *Splits // only for AllToAllV, AllGatherV and ReduceScatterV
	// Arrived, if set, is called with the sender's group rank when a Recv has received its message,
	// before later work on the stream. It must not call the backend. If it panics, the group fails.
	Arrived    func(source int) `json:"-"`
	Send, Recv uintptr          // addresses of this rank's buffers
	// SendWindow and RecvWindow contain the buffers. Both are nil on PathPlain, and if either buffer
	// is outside all windows. An AllToAllV uses only SendWindow. AllGatherV and ReduceScatterV use
	// only the window of the divided buffer.
	SendWindow, RecvWindow Window `json:"-"`
	Norm                   *Norm  `json:"-"`
	// Route is only for Dispatch and Combine. They use only RecvWindow and SendWindow.
	Route *Route `json:"-"`
	// List describes all calls if this call represents several; see ListOf.
	List     string
	Recorded Recorded
	// Keep is an object, such as a Go slice, that stays reachable while the call is queued.
	Keep any `json:"-"`
}

// Spans returns the sizes in bytes of one rank's send and receive buffers. In Broadcast and
// Reduce, every rank has both buffers.
func (c *Call) Spans(ranks, rank int) (send, recv int64) {
	if c.Route != nil {
		return c.Route.spans(c, ranks)
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

// OtherSpans returns the buffers that a call uses in addition to Send and Recv.
func (c *Call) OtherSpans() [4]Span {
	if c.Route != nil {
		return c.Route.Spans(c.Operation)
	}
	return c.Norm.Spans()
}

func (c *Call) elementCount(e Extent, ranks, rank int) int64 {
	if e == AllPartsOfRoot && rank != c.Root {
		return 0
	}
	return e.Parts(ranks) * c.Count
}

// InPlace reports whether both buffers are the same, or the smaller buffer is the rank's part of
// the larger one. NCCL permits no other overlap.
func (c *Call) InPlace(rank int) bool {
	offset := int64(rank) * c.Count // of the rank's part in the larger buffer, in elements
	if c.Splits != nil {
		if _, offsets := c.Splits.countsAndOffsets(c.Operation); rank < len(offsets) {
			offset = offsets[rank]
		}
	}
	offsetBytes := uintptr(offset * int64(c.DataType.Size()))
	switch send, recv := c.Operation.Extents(); {
	case send < recv && send == OnePart:
		return c.Send == c.Recv+offsetBytes
	case send > recv && recv == OnePart:
		return c.Recv == c.Send+offsetBytes
	default:
		return c.Send == c.Recv
	}
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

// SetPath sets the path and the digest, and clears windows that the path does not use.
func (c *Call) SetPath(path Path, digest uint64) {
	c.Path, c.Digest = path, digest
	if path == PathPlain && c.Operation.SupportsPath(PathDirect) {
		c.SendWindow, c.RecvWindow = nil, nil
	}
}

func sumCounts(counts []int64) (sum uint64) {
	for _, n := range counts {
		sum += uint64(n)
	}
	return sum
}

// Describe returns a description of the call without its addresses and the arguments of a norm.
func (c *Call) Describe() event.Call {
	op := c.Operation
	d := event.Call{
		Operation: op.String(), Path: c.Path.String(), DataType: c.DataType.String(), Root: -1,
		Count: uint64(c.Count), SendSegment: -1, RecvSegment: -1,
		Capture: c.Recorded.Capture, CaptureCall: c.Recorded.Call, List: c.List,
	}
	if op.Reduces() {
		d.ReduceOp = c.ReduceOp.String()
		if c.ReduceOp.HasFactor() { // at most 28 bytes
			d.ReduceOp = strconv.FormatFloat(c.Factor, 'g', -1, 64) + "*sum"
		}
	}
	if op.SplitsOneBuffer() && c.Splits != nil {
		counts, _ := c.Splits.countsAndOffsets(op)
		d.Counts, d.Count = event.CountsText(counts), sumCounts(counts)
	}
	if op.HasRoot() || op.PointToPoint() {
		d.Root = c.Root
	}
	if op == Barrier {
		d.DataType, d.Count = "", 0
	}
	return d
}
