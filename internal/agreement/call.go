package agreement

import (
	"fmt"
	"strings"

	"symmem/internal/ranklist"
)

// maxCallName bounds each of the names in a call, in bytes.
const maxCallName = 32

// CollectiveCall is what a rank asks of a collective: everything that must be the same on all
// ranks. A field that ranks may choose for themselves, such as the place of a buffer on the plain
// path, stays at its zero value.
type CollectiveCall struct {
	// Operation, Path, DataType and ReduceOp are names of at most 32 bytes.
	Operation, Path, DataType, ReduceOp string
	// Root is the root as a rank of the group, -1 where the operation has none. ReduceOp and
	// DataType are empty where it has none.
	Root int
	// Count is the number of elements.
	Count uint64
	// SendPool and RecvPool are ids of pools. SendSegment and RecvSegment are segment ordinals
	// there, -1 outside of windows; the offsets are in bytes from the start of the segment.
	SendPool, RecvPool       uint64
	SendSegment, RecvSegment int32
	SendOffset, RecvOffset   int64
	// Ticket is the number of the call in the group, from 1; 0 if it has none.
	Ticket uint64
	// Capture and CaptureCall are the numbers of the capture that the call is in, and of the call
	// there, from 1; 0 if it is in none.
	Capture, CaptureCall uint64
}

// String says the call in words, without what it has not.
func (c CollectiveCall) String() string { return c.words(Names{}) }

func (c CollectiveCall) words(n Names) string {
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

// Encode returns the call as bytes that are equal exactly for equal calls, names being cut to 32
// bytes. A nil call gives no bytes.
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

// DecodeCall reads what [CollectiveCall.Encode] wrote and nothing else. No bytes give a nil call.
// An error wraps [ErrProtocol].
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
	c.Capture, c.CaptureCall = r.u64("capture"), r.u64("place in a capture")
	if len(r.b) > 0 {
		r.fail("rest of a collective")
	}
	if r.err != nil {
		return nil, r.err
	}
	return c, nil
}

// noCall stands for the call of a rank that reports none.
const noCall = "no collective"

func (m *Machine) callText(value []byte) (string, error) {
	c, err := DecodeCall(value)
	if err != nil {
		return "", err
	}
	if c == nil {
		return noCall, nil
	}
	return c.words(m.config.Names), nil
}
