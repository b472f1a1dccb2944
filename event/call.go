package event

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"io"
	"strconv"
	"strings"
)

// maxNameBytes limits each name in an encoded Call, in bytes.
const maxNameBytes = 32

// Call holds the properties of a collective, Send or Recv that must be the same on all ranks. It
// must not be changed once an Event refers to it.
type Call struct {
	// Operation, Path, DataType and ReduceOp are names, such as "AllReduce", "window" (how the call
	// runs), "float32" and "sum". DataType and ReduceOp are empty if the operation has none.
	Operation, Path, DataType, ReduceOp string
	// Root is the group rank of the root or, in a Send or Recv, of the peer. It is -1 in operations
	// without a root.
	Root int
	// Count is the number of elements. If parts may differ in size, it is their total.
	Count uint64
	// Counts is the [CountsText] of parts that may differ in size. It is empty in other calls.
	Counts string
	// List is empty except in the first call of a list of calls that run as one collective. There,
	// it is the [ListText] of all calls of the list.
	List string
	// Pools are ids. Segments (parts of a pool that were mapped at once) are numbers in their
	// pools. They are -1 if the buffer is in no window: the group has not registered its segment.
	// Offsets are in bytes from the start of the segment.
	SendPool, RecvPool       uint64
	SendSegment, RecvSegment int32
	SendOffset, RecvOffset   int64
	// Ticket is the number of the call in the group, from 1, or 0 if it is unknown.
	Ticket uint64
	// Capture is the number of the stream capture that contains the call, and CaptureCall is the
	// number of the call in that capture. Both count from 1, and are 0 outside captures.
	Capture, CaptureCall uint64
	// Bytes is the size of the larger buffer. Bytes and Digest are not encoded or printed.
	Bytes  int64
	Digest uint64 // of the encoded call
}

// Names determines how AppendText names pools and ranks.
type Names struct {
	// Pool returns a pool's name. If it is nil, the id is used.
	Pool func(id uint64) string
	// Renumbered means that ranks have other numbers in the group than in the world.
	Renumbered bool
}

func (n Names) appendPool(dst []byte, id uint64) []byte {
	if n.Pool == nil {
		return strconv.AppendUint(append(dst, "pool "...), id, 10)
	}

	return append(dst, n.Pool(id)...)
}

// String describes the call, without empty fields.
func (c *Call) String() string { return string(c.AppendText(nil, Names{})) }

// AppendText appends the text of String, with other names.
func (c *Call) AppendText(dst []byte, n Names) []byte {
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

	if c.Root >= 0 {
		role := ", root "
		if c.Operation == "Send" || c.Operation == "Recv" {
			role = ", peer "
		}

		dst = append(dst, role...)
		dst = strconv.AppendInt(dst, int64(c.Root), 10)
		if n.Renumbered {
			dst = append(dst, " of the group"...)
		}
	}

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

// AppendCall appends the encoding of a call: names, then numbers as words of 64 bits, then Counts
// and List. Names are cut to 32 bytes, and Counts and List to 1024. DecodeCall reads the parts in
// the same order.
func AppendCall(dst []byte, c *Call) []byte {
	for _, name := range [...]string{c.Operation, c.Path, c.DataType, c.ReduceOp} {
		dst = appendEncodedText(dst, name, maxNameBytes)
	}

	for _, word := range [...]uint64{
		uint64(int64(c.Root)), c.Count, uint64(c.SendOffset), uint64(c.RecvOffset),
		uint64(int64(c.SendSegment)), uint64(int64(c.RecvSegment)), c.SendPool, c.RecvPool,
		c.Ticket, c.Capture, c.CaptureCall,
	} {
		dst = binary.LittleEndian.AppendUint64(dst, word)
	}

	for _, text := range [...]string{c.Counts, c.List} {
		dst = appendEncodedText(dst, text, maxTextBytes)
	}

	return dst
}

// appendEncodedText appends the length of a text, which it cuts to maxBytes, and the text.
func appendEncodedText(dst []byte, text string, maxBytes int) []byte {
	text = text[:min(len(text), maxBytes)]
	dst = binary.LittleEndian.AppendUint64(dst, uint64(len(text)))
	return append(dst, text...)
}

// CountsText formats counts, such as "4 4 8". If there are more than 32, it formats the first 32,
// and adds their number and a digest of all.
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

// ListText joins the texts of calls that run as one collective, such as "A; B". If the result does
// not fit into an encoded Call, ListText cuts it, and adds the number of calls and a digest of all.
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

// maxTextBytes limits Counts and List in an encoded Call, in bytes.
const maxTextBytes = 1024

// DecodeCall decodes the output of [AppendCall], which must fill b. Errors wrap [ErrMalformed].
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

// callReader reads the parts of an encoded Call. After a failure, it returns zero values, so that
// only the end of DecodeCall must check for failures.
type callReader struct {
	rest   []byte // not read yet; nil after a failure
	failed bool
}

func (r *callReader) readUint64() uint64 {
	if len(r.rest) < 8 {
		r.failed, r.rest = true, nil
		return 0
	}

	word := binary.LittleEndian.Uint64(r.rest)
	r.rest = r.rest[8:]
	return word
}

func (r *callReader) readText(maxBytes int) string {
	length := r.readUint64() // 0 after a failure
	if length > uint64(min(maxBytes, len(r.rest))) {
		r.failed, r.rest = true, nil
		return ""
	}

	text := string(r.rest[:length])
	r.rest = r.rest[length:]
	return text
}
