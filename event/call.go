package event

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"strconv"
)

// maxNameBytes limits each name in an encoded Call, in bytes.
const maxNameBytes = 32

// Call holds the properties of a collective, Send or Recv that must be the same on all ranks. It
// must not be changed once an Event refers to it.
type Call struct {
	Operation, Path, DataType, ReduceOp string
	// Root is a group rank, for a Send or Recv that of the peer, or -1.
	Root int
	// Count is the number of elements, the total if parts may differ in size.
	Count uint64
	// Counts is the [CountsText] of parts that may differ in size.
	Counts string
	// List describes all calls of a list, in the first call of a list that runs as one collective.
	List string
	// Pools are ids. Segments are numbers in their pools, or -1 outside windows. Offsets are in bytes
	// from the start of the segment.
	SendPool, RecvPool       uint64
	SendSegment, RecvSegment int32
	SendOffset, RecvOffset   int64
	// Ticket is the number of the call in the group, from 1, or 0 if it is unknown.
	Ticket uint64
	// Capture is the number of the capture of the call, and CaptureCall the number of the call in it.
	// Both count from 1, and are 0 outside captures.
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
		dst = append(append(dst, ' '), c.ReduceOp...)
	}
	if c.DataType != "" {
		dst = fmt.Appendf(dst, " of %d %s", c.Count, c.DataType)
	}
	if c.Counts != "" {
		dst = append(append(dst, ", counts "...), c.Counts...)
	}
	if c.Root >= 0 {
		role := ", root "
		if c.Operation == "Send" || c.Operation == "Recv" {
			role = ", peer "
		}
		dst = strconv.AppendInt(append(dst, role...), int64(c.Root), 10)
		if n.Renumbered {
			dst = append(dst, " of the group"...)
		}
	}
	dst = append(append(dst, ", path "...), c.Path...)
	if c.SendSegment >= 0 {
		dst = n.appendPool(append(dst, ", send "...), c.SendPool)
		dst = appendSegmentAndOffset(dst, c.SendSegment, c.SendOffset)
	}
	if c.RecvSegment >= 0 {
		dst = n.appendPool(append(dst, ", receive "...), c.RecvPool)
		dst = appendSegmentAndOffset(dst, c.RecvSegment, c.RecvOffset)
	}
	if c.Capture != 0 {
		dst = fmt.Appendf(dst, ", call %d of capture %d", c.CaptureCall, c.Capture)
	}
	if c.List != "" {
		dst = append(append(append(dst, ", first of the list ("...), c.List...), ')')
	}
	if c.Ticket > 0 {
		dst = strconv.AppendUint(append(dst, ", collective "...), c.Ticket, 10)
	}
	return dst
}

// AppendCall appends the encoding of a call. Names are cut to 32 bytes, Counts and
// List to 1024.
func AppendCall(dst []byte, c *Call) []byte {
	for _, name := range [...]string{c.Operation, c.Path, c.DataType, c.ReduceOp} {
		name = name[:min(len(name), maxNameBytes)]
		dst = append(binary.LittleEndian.AppendUint64(dst, uint64(len(name))), name...)
	}
	for _, word := range [...]uint64{
		uint64(int64(c.Root)), c.Count, uint64(c.SendOffset), uint64(c.RecvOffset),
		uint64(int64(c.SendSegment)), uint64(int64(c.RecvSegment)), c.SendPool, c.RecvPool,
		c.Ticket, c.Capture, c.CaptureCall,
	} {
		dst = binary.LittleEndian.AppendUint64(dst, word)
	}
	for _, text := range [...]string{c.Counts, c.List} {
		text = text[:min(len(text), maxTextBytes)]
		dst = append(binary.LittleEndian.AppendUint64(dst, uint64(len(text))), text...)
	}
	return dst
}

// CountsText formats at most 32 counts, and a digest of all if there are more.
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

// maxTextBytes limits Counts and List in an encoded Call, in bytes.
const maxTextBytes = 1024

// DecodeCall decodes the output of [AppendCall], which must fill b. Errors wrap [ErrMalformed].
func DecodeCall(b []byte) (*Call, error) {
	r, c := callReader{rest: b}, &Call{}
	for _, name := range [...]*string{&c.Operation, &c.Path, &c.DataType, &c.ReduceOp} {
		*name = r.readText(maxNameBytes)
	}
	c.Root, c.Count = int(int64(r.readUint64())), r.readUint64()
	c.SendOffset, c.RecvOffset = int64(r.readUint64()), int64(r.readUint64())
	c.SendSegment, c.RecvSegment = int32(r.readUint64()), int32(r.readUint64())
	c.SendPool, c.RecvPool, c.Ticket = r.readUint64(), r.readUint64(), r.readUint64()
	c.Capture, c.CaptureCall = r.readUint64(), r.readUint64()
	c.Counts, c.List = r.readText(maxTextBytes), r.readText(maxTextBytes)
	if r.failed || len(r.rest) > 0 {
		return nil, fmt.Errorf("decoding a call of %d bytes: %w", len(b), ErrMalformed)
	}
	return c, nil
}

// callReader returns zero values after a failure.
type callReader struct {
	rest   []byte
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
	n := r.readUint64()
	if n > uint64(min(maxBytes, len(r.rest))) {
		r.failed, r.rest = true, nil
		return ""
	}
	text := string(r.rest[:n])
	r.rest = r.rest[n:]
	return text
}
