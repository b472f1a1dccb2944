package event

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"io"
	"strconv"
	"strings"
)

// Call describes a collective, a Send or a Recv by properties that must be the same on all ranks.
// It must not be changed once an Event refers to it.
//
// For example, ranks sum up 1024 floats each. The input and the output are in pool 3, a pool that
// they share. Each rank's Call has this text, but in one line:
//
//	AllReduce sum of 1024 float32, path window,
//	send pool 3 segment 0 offset 0x0, receive pool 3 segment 2 offset 0x1000, collective 7
//
// Ranks send each other Calls as bytes. [AppendCall] encodes a Call, and [DecodeCall] decodes it.
type Call struct {
	// These are names. Path is how the call runs. DataType and ReduceOp are empty if the operation
	// has none: a Barrier moves no data, and an AllGather does not reduce any.
	Operation string // such as "AllReduce"
	Path      string // such as "window"
	DataType  string // such as "float32"
	ReduceOp  string // such as "sum"
	// Root is the group rank of the root. In a Send or Recv, it is the group rank of the peer. In
	// other operations without a root, it is -1.
	Root int
	// Count is the number of elements. If ranks' parts may differ in size, it is the total number.
	Count uint64
	// Counts is the [CountsText] of the sizes, if the parts may differ in size. Otherwise, it is
	// empty.
	Counts string
	// List is not empty if several calls run as one collective. The Call then describes the first of
	// them, and List is the [ListText] of all.
	List string
	// These fields give the place of the send buffer and of the receive buffer. A segment is a part
	// of a pool that was mapped at once. It is -1 if the call does not use a window there: a segment
	// that is registered with the group.
	SendPool, RecvPool       uint64 // ids
	SendSegment, RecvSegment int32  // numbers in the pools
	SendOffset, RecvOffset   int64  // from the start of the segment, in bytes
	// Ticket is the number of the call in the group, from 1, or 0 if it is unknown.
	Ticket uint64
	// Capture is the number of the stream capture that contains the call, and CaptureCall is the
	// number of the call in it. Both count from 1, and are 0 outside captures.
	Capture, CaptureCall uint64
	// Bytes is the size of the larger buffer. Bytes and Digest are not encoded or printed.
	Bytes  int64
	Digest uint64 // of the encoded call
}

// Names changes the names of pools and ranks in the text of a Call.
type Names struct {
	// Pool returns the name of a pool. If it is nil, the name of pool 3 is "pool 3".
	Pool func(id uint64) string
	// Renumbered adds that a rank is "of the group", because it has another number in the world.
	Renumbered bool
}

func (n Names) appendPool(dst []byte, id uint64) []byte {
	if n.Pool == nil {
		return strconv.AppendUint(append(dst, "pool "...), id, 10)
	}

	return append(dst, n.Pool(id)...)
}

// String returns the text of the call, without empty fields.
func (c *Call) String() string { return string(c.AppendText(nil, Names{})) }

// AppendText appends the text that String returns, but with other names.
func (c *Call) AppendText(dst []byte, n Names) []byte {
	dst = c.appendArguments(dst, n)
	dst = append(dst, ", path "...)
	dst = append(dst, c.Path...)
	if c.SendSegment >= 0 {
		dst = append(dst, ", send "...)
		dst = n.appendPool(dst, c.SendPool)
		dst = appendSegmentAndOffset(dst, c.SendSegment, c.SendOffset)
	}

	if c.RecvSegment >= 0 {
		dst = append(dst, ", receive "...)
		dst = n.appendPool(dst, c.RecvPool)
		dst = appendSegmentAndOffset(dst, c.RecvSegment, c.RecvOffset)
	}

	if c.Capture != 0 {
		dst = fmt.Appendf(dst, ", call %d of capture %d", c.CaptureCall, c.Capture)
	}

	if c.List != "" {
		dst = append(dst, ", first of the list ("...)
		dst = append(dst, c.List...)
		dst = append(dst, ')')
	}

	if c.Ticket > 0 {
		dst = append(dst, ", collective "...)
		dst = strconv.AppendUint(dst, c.Ticket, 10)
	}

	return dst
}

// appendArguments appends the text before the path, such as "Reduce sum of 4 int8, root 2".
func (c *Call) appendArguments(dst []byte, n Names) []byte {
	dst = append(dst, c.Operation...)
	if c.ReduceOp != "" {
		dst = append(dst, ' ')
		dst = append(dst, c.ReduceOp...)
	}

	if c.DataType != "" {
		dst = fmt.Appendf(dst, " of %d %s", c.Count, c.DataType)
	}

	if c.Counts != "" {
		dst = append(dst, ", counts "...)
		dst = append(dst, c.Counts...)
	}

	if c.Root < 0 {
		return dst
	}

	role := ", root "
	if c.Operation == "Send" || c.Operation == "Recv" {
		role = ", peer "
	}

	dst = append(dst, role...)
	dst = strconv.AppendInt(dst, int64(c.Root), 10)
	if n.Renumbered {
		dst = append(dst, " of the group"...)
	}

	return dst
}

// CountsText returns counts as text, such as "4 4 8". After the first 32 counts, it gives only the
// number and a digest of all counts.
func CountsText(counts []int64) string {
	const maxCounts = 32
	var text []byte
	for i, n := range counts[:min(len(counts), maxCounts)] {
		if i > 0 {
			text = append(text, ' ')
		}

		text = strconv.AppendInt(text, n, 10)
	}

	if len(counts) > maxCounts {
		h := fnv.New64a()
		_ = binary.Write(h, binary.LittleEndian, counts) // a hash returns no errors
		text = fmt.Appendf(text, " ... (%d counts, digest %016x)", len(counts), h.Sum64())
	}

	return string(text)
}

// The longest texts in an encoded Call, in bytes.
const (
	maxNameBytes = 32   // for the Operation, Path, DataType and ReduceOp
	maxTextBytes = 1024 // for Counts and List
)

// ListText returns the texts of several calls as one text, such as "A; B". If this is longer than
// 1024 bytes, ListText cuts it, and adds the number of calls and a digest of the whole text.
func ListText(calls []string) string {
	text := strings.Join(calls, "; ")
	if len(text) <= maxTextBytes {
		return text
	}

	h := fnv.New64a()
	_, _ = io.WriteString(h, text) // a hash returns no errors
	ending := fmt.Sprintf(" ... (%d calls, digest %016x)", len(calls), h.Sum64())
	return text[:maxTextBytes-len(ending)] + ending
}

// AppendCall appends the encoding of a call. It consists of the names, of numbers of 64 bits, and
// of Counts and List. AppendCall cuts names to 32 bytes, and Counts and List to 1024.
func AppendCall(dst []byte, c *Call) []byte {
	for _, name := range [...]string{c.Operation, c.Path, c.DataType, c.ReduceOp} {
		dst = appendEncodedText(dst, name, maxNameBytes)
	}

	for _, number := range [...]uint64{ // DecodeCall reads them in the same order
		uint64(int64(c.Root)), c.Count, uint64(c.SendOffset), uint64(c.RecvOffset),
		uint64(int64(c.SendSegment)), uint64(int64(c.RecvSegment)), c.SendPool, c.RecvPool,
		c.Ticket, c.Capture, c.CaptureCall,
	} {
		dst = binary.LittleEndian.AppendUint64(dst, number)
	}

	for _, text := range [...]string{c.Counts, c.List} {
		dst = appendEncodedText(dst, text, maxTextBytes)
	}

	return dst
}

// appendEncodedText cuts a text to maxBytes. Then it appends the text's length and the text.
func appendEncodedText(dst []byte, text string, maxBytes int) []byte {
	text = text[:min(len(text), maxBytes)]
	dst = binary.LittleEndian.AppendUint64(dst, uint64(len(text)))
	return append(dst, text...)
}

// DecodeCall decodes a call that [AppendCall] has encoded. b contains nothing else. Errors wrap
// [ErrMalformed].
func DecodeCall(b []byte) (*Call, error) {
	r := callReader{rest: b}
	c := &Call{}
	for _, name := range [...]*string{&c.Operation, &c.Path, &c.DataType, &c.ReduceOp} {
		*name = r.readText(maxNameBytes)
	}

	c.Root = int(int64(r.readUint64()))
	c.Count = r.readUint64()
	c.SendOffset = int64(r.readUint64())
	c.RecvOffset = int64(r.readUint64())
	c.SendSegment = int32(r.readUint64())
	c.RecvSegment = int32(r.readUint64())
	c.SendPool = r.readUint64()
	c.RecvPool = r.readUint64()
	c.Ticket = r.readUint64()
	c.Capture = r.readUint64()
	c.CaptureCall = r.readUint64()
	c.Counts = r.readText(maxTextBytes)
	c.List = r.readText(maxTextBytes)
	if r.failed || len(r.rest) > 0 {
		return nil, fmt.Errorf("decoding a call of %d bytes: %w", len(b), ErrMalformed)
	}

	return c, nil
}

// callReader reads the parts of an encoded Call. After a failure, it returns only zero values, so
// that DecodeCall checks for failures once.
type callReader struct {
	rest   []byte // not read yet
	failed bool
}

func (r *callReader) readUint64() uint64 {
	if len(r.rest) < 8 {
		r.fail()
		return 0
	}

	number := binary.LittleEndian.Uint64(r.rest)
	r.rest = r.rest[8:]
	return number
}

func (r *callReader) readText(maxBytes int) string {
	length := r.readUint64() // 0 after a failure
	if length > uint64(min(maxBytes, len(r.rest))) {
		r.fail()
		return ""
	}

	text := string(r.rest[:length])
	r.rest = r.rest[length:]
	return text
}

// fail records a failure. It drops the rest, so that later reads fail as well or return "".
func (r *callReader) fail() {
	r.failed = true
	r.rest = nil
}
