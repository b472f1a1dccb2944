package agreement

import (
	"fmt"
	"strings"

	"symmem/internal/ranklist"
)

// maxCallName limits each name in a call, in bytes.
const maxCallName = 32

// CollectiveCall describes a rank's call of a collective by the values that must be the same on all
// ranks. If ranks may choose a value freely, such as the place of a buffer on the plain path, its
// field keeps the zero value.
type CollectiveCall struct {
	// Operation, Path, DataType and ReduceOp are names of at most 32 bytes.
	Operation, Path, DataType, ReduceOp string
	// Root is a group rank, or -1 if the operation has no root. DataType and ReduceOp are empty if
	// the operation has none.
	Root int
	// Count is the number of elements.
	Count uint64
	// SendPool and RecvPool are ids of pools. SendSegment and RecvSegment are segment ordinals in
	// these pools, or -1 for a buffer outside windows. The offsets are in bytes from the start of
	// the segment.
	SendPool, RecvPool       uint64
	SendSegment, RecvSegment int32
	SendOffset, RecvOffset   int64
	// Ticket is the number of the call in the group, from 1, or 0 if the call has no number.
	Ticket uint64
	// Capture is the number of the capture that contains the call, and CaptureCall the number of
	// the call within that capture. Both start at 1, and are 0 outside captures.
	Capture, CaptureCall uint64
}

// String describes the call without its empty fields.
func (c CollectiveCall) String() string { return c.text(Names{}) }

func (c CollectiveCall) text(n Names) string {
	var b strings.Builder
	b.WriteString(c.Operation)
	if c.ReduceOp != "" {
		fmt.Fprintf(&b, " %s", c.ReduceOp)
	}
	if c.DataType != "" {
		fmt.Fprintf(&b, " of %d %s", c.Count, c.DataType)
	}
	if c.Root >= 0 {
		fmt.Fprintf(&b, ", root %d", c.Root)
		if !ranklist.NumberedAsWorld(n.Members) {
			b.WriteString(" of the group")
		}
	}
	fmt.Fprintf(&b, ", path %s", c.Path)
	for _, buffer := range []struct {
		name    string
		pool    uint64
		segment int32
		offset  int64
	}{
		{"send", c.SendPool, c.SendSegment, c.SendOffset},
		{"receive", c.RecvPool, c.RecvSegment, c.RecvOffset},
	} {
		if buffer.segment >= 0 {
			fmt.Fprintf(&b, ", %s %s segment %d offset %#x", buffer.name, n.pool(buffer.pool),
				buffer.segment, buffer.offset)
		}
	}
	if c.Capture != 0 {
		fmt.Fprintf(&b, ", call %d of capture %d", c.CaptureCall, c.Capture)
	}
	if c.Ticket > 0 {
		fmt.Fprintf(&b, ", collective %d", c.Ticket)
	}
	return b.String()
}

// Encode encodes the call. Two encodings are equal if and only if the calls are equal, except that
// names are truncated to 32 bytes. The encoding of nil is empty.
func (c *CollectiveCall) Encode() []byte {
	if c == nil {
		return nil
	}
	b := make([]byte, 0, 256)
	for _, word := range []string{c.Operation, c.Path, c.DataType, c.ReduceOp} {
		b = appendBytes(b, []byte(word)[:min(len(word), maxCallName)])
	}
	b = appendWords(b, uint64(int64(c.Root)), c.Count, uint64(c.SendOffset), uint64(c.RecvOffset))
	b = appendWords(b, uint64(int64(c.SendSegment)), uint64(int64(c.RecvSegment)))
	return appendWords(b, c.SendPool, c.RecvPool, c.Ticket, c.Capture, c.CaptureCall)
}

// DecodeCall decodes the output of [CollectiveCall.Encode]. It returns nil for empty input. Errors
// wrap [ErrProtocol].
func DecodeCall(value []byte) (*CollectiveCall, error) {
	if len(value) == 0 {
		return nil, nil
	}
	r := &reader{b: value}
	c := &CollectiveCall{}
	for _, word := range []*string{&c.Operation, &c.Path, &c.DataType, &c.ReduceOp} {
		*word = string(r.bytes(maxCallName, "collective"))
	}
	c.Root, c.Count = int(int64(r.u64("root"))), r.u64("count")
	c.SendOffset, c.RecvOffset = int64(r.u64("offset")), int64(r.u64("offset"))
	c.SendSegment, c.RecvSegment = int32(r.u64("segment")), int32(r.u64("segment"))
	c.SendPool, c.RecvPool = r.u64("pool"), r.u64("pool")
	c.Ticket = r.u64("ticket")
	c.Capture, c.CaptureCall = r.u64("capture"), r.u64("number in a capture")
	if len(r.b) > 0 {
		r.fail("rest of a collective")
	}
	if r.err != nil {
		return nil, r.err
	}
	return c, nil
}

// noCall describes a rank that reports no call.
const noCall = "no collective"

// callText describes an encoded call.
func (n Names) callText(value []byte) (string, error) {
	c, err := DecodeCall(value)
	if err != nil {
		return "", err
	}
	if c == nil {
		return noCall, nil
	}
	return c.text(n), nil
}
