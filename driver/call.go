package driver

import (
	"fmt"
	"math"
	"strconv"

	"symmem/event"
	"symmem/internal/reduce"
)

// Call holds one rank's arguments for a collective, Send or Recv.
//
// Buffers consist of parts. For example, in an AllGather of 4 Float32 elements on two ranks, the
// send buffer has one part of 16 bytes, and the receive buffer has one from each rank.
type Call struct {
	Operation Operation
	DataType  DataType
	ReduceOp  ReduceOp
	Factor    float64 // for PremulSum, the same on all ranks; otherwise 0
	Path      Path    // how the call runs; set by Offer.Take
	Digest    uint64  // hash of everything that ranks must agree on; set by Offer.Take
	Root      int     // group rank of the root, or of the peer in a Send or Recv
	// Tag distinguishes messages between two ranks. Messages with the same tag match in call order,
	// across all streams.
	Tag int
	// Count is the number of elements in each part. For AllGatherV and ReduceScatterV, it is that
	// of this rank's part, and for AllToAllV, it is 0.
	Count  int64
	Splits *Splits // only for AllToAllV, AllGatherV and ReduceScatterV
	// Arrived, if set, is called with the sender's group rank after a Recv, before later work on
	// the stream. It must not call symmem. A panic makes the group fail.
	Arrived    func(source int) `json:"-"`
	Send, Recv uintptr          // addresses of this rank's buffers
	// SendWindow and RecvWindow are the registrations of the memory at Send and Recv, or nil.
	// ReduceScatterV, Combine and AllToAllV use only SendWindow. AllGatherV and Dispatch use only
	// RecvWindow. Other operations use both or none.
	SendWindow, RecvWindow Window   `json:"-"`
	Norm                   *Norm    `json:"-"` // only for operations with HasNorm
	Route                  *Route   `json:"-"` // only for Dispatch and Combine
	List                   string   // texts of the calls that ListOf combined in this one
	Recorded               Recorded // position in a capture
	// Keep is an object, such as a Go slice, that stays reachable while the call is queued.
	Keep any `json:"-"`
}

// SetPath sets the path and the digest. It clears unused windows: PathPlain uses windows only in an
// AllToAllV.
func (c *Call) SetPath(path Path, digest uint64) {
	c.Path = path
	c.Digest = digest
	if path == PathPlain && c.Operation != AllToAllV {
		c.SendWindow = nil
		c.RecvWindow = nil
	}
}

// Spans returns the sizes in bytes of one rank's send and receive buffers. In a Broadcast or
// Reduce, all ranks have both.
func (c *Call) Spans(ranks, rank int) (send, recv int64) {
	if c.Route != nil {
		return c.Route.sendAndRecvBytes(c, ranks)
	}

	size := int64(c.DataType.Size())
	sendExtent, recvExtent := c.Operation.Extents()
	var splits Splits
	if c.Splits != nil {
		splits = *c.Splits
	}

	send = c.elementCount(sendExtent, splits.SendCounts, splits.SendOffsets, ranks, rank) * size
	recv = c.elementCount(recvExtent, splits.RecvCounts, splits.RecvOffsets, ranks, rank) * size
	return send, recv
}

// elementCount returns the number of elements in a rank's buffer. Only BySplits uses counts and
// offsets.
func (c *Call) elementCount(
	extent Extent, counts, offsets []int64, ranks, rank int,
) int64 {
	switch {
	case extent == BySplits:
		return lastPartEnd(counts, offsets)
	case extent == AllPartsOfRoot && rank != c.Root:
		return 0
	default:
		return extent.Parts(ranks) * c.Count
	}
}

// OtherSpans returns the additional buffers of a call with a Route or Norm. Unused spans are empty.
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
	switch {
	case send == OnePart && recv.isDivided():
		return c.Send == c.Recv+c.partOffset(rank)
	case recv == OnePart && send.isDivided():
		return c.Recv == c.Send+c.partOffset(rank)
	default:
		return c.Send == c.Recv
	}
}

// partOffset returns the offset in bytes of a rank's part in the divided buffer.
func (c *Call) partOffset(rank int) uintptr {
	elements := int64(rank) * c.Count
	if c.Splits != nil {
		_, offsets := c.Splits.countsAndOffsets(c.Operation)
		if rank < len(offsets) { // always, if the call is valid
			elements = offsets[rank]
		}
	}

	return uintptr(elements * int64(c.DataType.Size()))
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
	const noRoot, noSegment = -1, -1
	op := c.Operation
	d := event.Call{
		Operation: op.String(), Path: c.Path.String(), DataType: c.DataType.String(),
		Count: uint64(c.Count), Root: noRoot, SendSegment: noSegment, RecvSegment: noSegment,
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
// 0.5. Every such text fits into the 32 bytes of an encoded event.Call.
func (c *Call) describeReduction() string {
	if !c.ReduceOp.HasFactor() {
		return c.ReduceOp.String()
	}

	const shortest = -1
	factor := strconv.FormatFloat(c.Factor, 'g', shortest, 64)
	return factor + "*sum"
}

// Recorded is a call's position in a capture. It is zero if the call was not captured.
type Recorded struct {
	// Capture numbers the captures with calls of the group. Call numbers the group's calls in this
	// capture. Both start at 1 and are the same on all ranks.
	Capture, Call uint64
}

// String describes the position, or returns "" for the zero value.
func (r Recorded) String() string {
	if r == (Recorded{}) {
		return ""
	}

	return fmt.Sprintf("call %d of capture %d", r.Call, r.Capture)
}

// RecordedAs returns a copy of the call with the position, which becomes a part of the Digest.
func (c Call) RecordedAs(position Recorded) Call {
	c.Recorded = position
	c.Digest = mix(mix(c.Digest^mix(position.Capture)) + position.Call)
	return c
}

// ListOf returns the first plan's call, with the Digest and List of the calls of all plans.
func ListOf(plans []Plan) Call {
	call := *plans[0].Prepared()
	texts := make([]string, len(plans))
	digest := uint64(len(plans))
	for i, p := range plans {
		d := p.Prepared().Describe()
		texts[i] = d.String()
		digest = mix(digest) + p.Prepared().Digest
	}

	call.List = event.ListText(texts)
	call.Digest = mix(digest)
	return call
}

// mix is a bijection in which each bit of the result depends on all bits of x.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
