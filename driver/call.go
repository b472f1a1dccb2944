package driver

import (
	"math"
	"strconv"

	"symmem/event"
	"symmem/internal/reduce"
)

// Call is one rank's side of a collective, Send or Recv.
//
// For example, in an AllGather of 4 Float32 elements on two ranks, the send buffer has one part of
// 16 bytes, and the receive buffer has two parts, one from each rank.
type Call struct {
	Operation Operation
	DataType  DataType
	ReduceOp  ReduceOp
	Factor    float64 // multiplier of a PremulSum, the same on all ranks; otherwise 0
	Path      Path    // how the call runs; set by Offer.Take
	Digest    uint64  // hash of everything that ranks must agree on; set by Offer.Take
	Root      int     // group rank of the root or the peer, or AnySource in a Recv
	// Tag distinguishes messages between two ranks. Messages with the same tag match in call order,
	// across all streams.
	Tag int
	// Count is the number of elements per part. In an AllGatherV or ReduceScatterV, it is this rank's
	// count in Splits. In an AllToAllV, it is 0.
	Count  int64
	Splits *Splits // only for AllToAllV, AllGatherV and ReduceScatterV
	// Arrived, if set, is called after a Recv and before later work on the stream, with the sender's
	// group rank. It must not call the backend. A panic makes the group fail.
	Arrived    func(source int) `json:"-"`
	Send, Recv uintptr          // addresses of this rank's buffers
	// SendWindow and RecvWindow are the registrations of the memory at Send and Recv. Both are nil if
	// either buffer is unregistered, and on PathPlain. These operations use only one window:
	//
	//	SendWindow   ReduceScatterV, Combine, AllToAllV (also on PathPlain)
	//	RecvWindow   AllGatherV, Dispatch
	SendWindow, RecvWindow Window   `json:"-"`
	Norm                   *Norm    `json:"-"` // only for operations with HasNorm
	Route                  *Route   `json:"-"` // only for Dispatch and Combine
	List                   string   // texts of all calls that run as this one; see ListOf
	Recorded               Recorded // position in a captured graph
	// Keep is an object, such as a Go slice, that stays reachable while the call is queued.
	Keep any `json:"-"`
}

// Offer prepares one call of a communicator for a path. It is not safe for concurrent use.
type Offer interface {
	// Refusal returns nil if the path supports the call, and otherwise an error that matches
	// ErrUnsupported. It also refuses paths whose results could differ from the group's Formula.
	//
	// Refusal considers only the operation, type, reduction, count, presence of windows, and alignment
	// of the offsets in the windows, so that all ranks choose the same path without communicating. For
	// PathWindow, it assumes that both windows are set.
	Refusal(path Path) error
	// Take returns a plan for a supported path, with the given Call.Digest. On PathWindow, it returns
	// ErrOutOfRange if a buffer is outside the group's windows. Do not use the Offer after Take.
	Take(path Path, digest uint64) (Plan, error)
}

// Plan is a prepared call of one communicator. It is immutable, can be launched any number of
// times, and is valid until one of the call's windows is deregistered.
type Plan interface {
	// Prepared returns the call, which must not be changed.
	Prepared() *Call
}

// Prepare returns a plan for the path and the digest that are set in call.
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
	// The only operation with windows but without PathDirect is AllToAllV.
	keepsWindow := !c.Operation.SupportsPath(PathDirect)
	if path == PathPlain && !keepsWindow {
		c.SendWindow = nil
		c.RecvWindow = nil
	}
}

// Spans returns the sizes in bytes of one rank's send and receive buffers. Every rank has both
// buffers in a Broadcast or Reduce.
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

// elementCount returns the number of elements of a rank's buffer, or 0 for BySplits.
func (c *Call) elementCount(extent Extent, ranks, rank int) int64 {
	isRoot := rank == c.Root
	if extent == AllPartsOfRoot && !isRoot {
		return 0
	}

	return extent.Parts(ranks) * c.Count
}

// OtherSpans returns the buffers of a Route or a Norm. Unused spans are empty.
func (c *Call) OtherSpans() [4]Span {
	if c.Route != nil {
		return c.Route.Spans(c.Operation)
	}

	return c.Norm.Spans() // Norm may be nil
}

// InPlace reports whether both buffers are the same, or the smaller buffer is the rank's part of
// the larger one. NCCL permits no other overlap.
func (c *Call) InPlace(rank int) bool {
	send, recv := c.Operation.Extents()
	isSendDivided := send > OnePart // AllParts, AllPartsOfRoot or BySplits
	isRecvDivided := recv > OnePart
	switch {
	case send == OnePart && isRecvDivided:
		return c.Send == c.Recv+c.partOffset(rank)
	case recv == OnePart && isSendDivided:
		return c.Recv == c.Send+c.partOffset(rank)
	default:
		return c.Send == c.Recv
	}
}

// partOffset returns the offset in bytes of a rank's part in the divided buffer.
func (c *Call) partOffset(rank int) uintptr {
	offset := int64(rank) * c.Count // in elements, if all parts have the same size
	if c.Splits != nil {
		_, offsets := c.Splits.countsAndOffsets(c.Operation)
		if rank < len(offsets) { // always, if the call is valid
			offset = offsets[rank]
		}
	}

	return uintptr(offset * int64(c.DataType.Size()))
}

// IsFloatMinOrMax reports whether the call is a reduction by Min or Max of floats, in which NCCL
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
	default: // Float32; integers have no factor
		return uint64(math.Float32bits(float32(c.Factor)))
	}
}

// Describe returns a description of the call without its buffers, Norm and Route.
func (c *Call) Describe() event.Call {
	const none = -1 // no root, no segment
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

// describeReduction returns the name of the reduction, or "0.5*sum" for a PremulSum with the factor
// 0.5. An encoded event.Call has 32 bytes for this text, enough for the longest factors, such as
// -1.2345678901234567e-308.
func (c *Call) describeReduction() string {
	if !c.ReduceOp.HasFactor() {
		return c.ReduceOp.String()
	}

	const shortest = -1
	factor := strconv.FormatFloat(c.Factor, 'g', shortest, 64)
	return factor + "*sum"
}
