package event

import (
	"bytes"
	"math"
	"strconv"
)

// String returns the text of [Event.AppendText].
func (e Event) String() string {
	text, _ := e.AppendText(nil)
	return string(text)
}

// AppendText appends the fields that apply, without the number, pool, group and call site:
//
//	alloc 1048576 B (stream 0) -> segment 2 offset 0x100000
//	free 1048576 B (asked 1000000 B, stream 0) at segment 2 offset 0x100000
//	note 4096 of kind 7
//	AllReduce sum of 1024 float32, path window, send pool 0 segment 2 offset 0x0, ...
//	"batch size": Agree of 8
//	step decode, after 12 collectives
//
// The error is always nil, as required by encoding.TextAppender.
func (e Event) AppendText(dst []byte) ([]byte, error) {
	isScopeEvent := e.Kind >= KindScopeBegin && e.Kind <= KindScopeAbandon
	switch {
	case e.Kind == KindCollective && e.Call != nil:
		return e.Call.AppendText(dst, Names{}), nil
	case e.Kind == KindFault:
		dst = append(dst, "fault: "...)
		return append(dst, e.Text...), nil
	case e.Kind == KindStep:
		return e.appendStep(dst), nil
	case e.Kind.IsGroupEvent():
		return e.appendValue(dst), nil
	case isScopeEvent:
		dst = append(dst, e.Kind.String()...)
		return e.appendGroupName(dst, " of"), nil
	default:
		dst = e.appendPoolEvent(dst)
		return e.appendGroupName(dst, " with"), nil
	}
}

// appendGroupName appends the preposition and e.Name, the id of a group, such as " with group
// world". If the event has no group, it appends nothing.
func (e *Event) appendGroupName(dst []byte, preposition string) []byte {
	if e.Name == "" {
		return dst
	}

	dst = append(dst, preposition...)
	dst = append(dst, " group "...)
	return append(dst, e.Name...)
}

// appendStep appends the text of a KindStep.
func (e *Event) appendStep(dst []byte) []byte {
	if e.Name != "" {
		dst = append(dst, "step "...)
	}

	dst = append(dst, e.Text...)
	dst = append(dst, ", after "...)
	dst = strconv.AppendUint(dst, e.Collectives, 10)
	if e.Collectives == 1 {
		return append(dst, " collective"...)
	}

	return append(dst, " collectives"...)
}

// appendValue appends the text of an event that compares or combines values.
func (e *Event) appendValue(dst []byte) []byte {
	if e.Name != "" {
		dst = strconv.AppendQuote(dst, e.Name)
		dst = append(dst, ": "...)
	}

	dst = append(dst, e.Operation...)
	dst = append(dst, " of "...)
	switch e.Kind {
	case KindFlag:
		return strconv.AppendBool(dst, e.Value != 0)
	case KindFloat:
		return appendFloat(dst, math.Float64frombits(uint64(e.Value)))
	case KindText:
		return append(dst, e.Text...)
	default:
		return strconv.AppendInt(dst, e.Value, 10)
	}
}

// appendFloat appends the shortest text of a float. It appends ".0" if the number would otherwise
// look like an integer.
func appendFloat(dst []byte, value float64) []byte {
	begin := len(dst)
	dst = strconv.AppendFloat(dst, value, 'g', -1, 64)
	text := dst[begin:]
	const notInInteger = ".eIN" // a point, an exponent, Inf or NaN
	if !bytes.ContainsAny(text, notInInteger) {
		dst = append(dst, ".0"...)
	}

	return dst
}

// appendPoolEvent appends the text of a pool's event, without the name of a group.
func (e *Event) appendPoolEvent(dst []byte) []byte {
	dst = append(dst, e.Kind.String()...)
	dst = append(dst, ' ')
	dst = strconv.AppendInt(dst, e.Size, 10)
	hasNoPlace := e.Segment == -1 && e.Offset == 0
	isPlainNote := e.Kind == KindNote && hasNoPlace && e.Stream == 0
	if isPlainNote { // Size is the number, and Requested its kind
		dst = append(dst, " of kind "...)
		return strconv.AppendInt(dst, e.Requested, 10)
	}

	dst = append(dst, " B ("...)
	omittedBytes := int64(0) // the text omits a requested size with this value
	if e.Kind.isPlacement() {
		omittedBytes = e.Size
	}

	if e.Requested != omittedBytes {
		dst = append(dst, "asked "...)
		dst = strconv.AppendInt(dst, e.Requested, 10)
		dst = append(dst, " B, "...)
	}

	dst = append(dst, "stream "...)
	dst = strconv.AppendUint(dst, uint64(e.Stream), 10)
	dst = append(dst, ')')
	if hasNoPlace {
		return dst
	}

	preposition := " at"
	if e.Kind.isPlacement() {
		preposition = " ->"
	}

	dst = append(dst, preposition...)
	return appendSegmentAndOffset(dst, e.Segment, e.Offset)
}

// appendSegmentAndOffset appends a place in a pool, such as " segment 2 offset 0x100000".
func appendSegmentAndOffset(dst []byte, segment int32, offset int64) []byte {
	dst = append(dst, " segment "...)
	dst = strconv.AppendInt(dst, int64(segment), 10)
	dst = append(dst, " offset "...)
	if offset < 0 { // only in malformed events
		dst = append(dst, '-')
		offset = -offset
	}

	dst = append(dst, "0x"...)
	return strconv.AppendUint(dst, uint64(offset), 16)
}
