package event

import (
	"bytes"
	"math"
	"strconv"
)

// String returns the text that AppendText appends.
func (e Event) String() string {
	text, _ := e.AppendText(nil)
	return string(text)
}

// AppendText appends a description without Number, Pool, Group and Site:
//
//	alloc 1048576 B (stream 0) -> segment 2 offset 0x100000
//	free 1048576 B (asked 1000000 B, stream 0) at segment 2 offset 0x100000
//	register 2097152 B (stream 0) at segment 0 offset 0x0 with group world
//	note 4096 of kind 7
//	scope begin of group world
//	AllReduce sum of 1024 float32, path window, send pool 0 segment 2 offset 0x0, ...
//	"batch size": Agree of 8
//	step decode, after 12 collectives
//	fault: rank 1 is lost
//
// The error is always nil, as required by encoding.TextAppender.
func (e Event) AppendText(dst []byte) ([]byte, error) {
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
	case e.Kind.isScope():
		dst = append(dst, e.Kind.String()...)
		return e.appendGroupName(dst, " of"), nil
	default: // other events of a pool
		dst = e.appendPoolEvent(dst)
		return e.appendGroupName(dst, " with"), nil
	}
}

// appendStep omits "step" if there is no Name, because reports of differences print the word.
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

// appendFloat appends the shortest text of a float, with ".0" if it would look like an integer.
func appendFloat(dst []byte, value float64) []byte {
	const shortest = -1
	begin := len(dst)
	dst = strconv.AppendFloat(dst, value, 'g', shortest, 64)
	looksLikeFloat := bytes.ContainsAny(dst[begin:], ".eIN") // 1.5, 1e+30, +Inf or NaN
	if !looksLikeFloat {
		dst = append(dst, ".0"...)
	}

	return dst
}

// appendGroupName appends a text such as " with group world", unless the event names no group.
func (e *Event) appendGroupName(dst []byte, preposition string) []byte {
	if e.Name == "" {
		return dst
	}

	dst = append(dst, preposition...)
	dst = append(dst, " group "...)
	return append(dst, e.Name...)
}

// appendPoolEvent shows all fields that ranks compare, even of malformed events.
func (e *Event) appendPoolEvent(dst []byte) []byte {
	hasPlace := e.Segment != -1 || e.Offset != 0
	isValidNote := e.Kind == KindNote && !hasPlace && e.Stream == 0
	if isValidNote {
		return e.appendNote(dst)
	}

	dst = append(dst, e.Kind.String()...)
	dst = append(dst, ' ')
	dst = strconv.AppendInt(dst, e.Size, 10)
	dst = append(dst, " B ("...)
	usualRequest := int64(0)
	if e.Kind.isPlacement() {
		usualRequest = e.Size
	}

	if e.Requested != usualRequest {
		dst = append(dst, "asked "...)
		dst = strconv.AppendInt(dst, e.Requested, 10)
		dst = append(dst, " B, "...)
	}

	dst = append(dst, "stream "...)
	dst = strconv.AppendUint(dst, uint64(e.Stream), 10)
	dst = append(dst, ')')
	if !hasPlace {
		return dst
	}

	preposition := " at"
	if e.Kind.isPlacement() {
		preposition = " ->"
	}

	dst = append(dst, preposition...)
	return appendSegmentAndOffset(dst, e.Segment, e.Offset)
}

func (e *Event) appendNote(dst []byte) []byte {
	dst = append(dst, "note "...)
	dst = strconv.AppendInt(dst, e.Size, 10)
	dst = append(dst, " of kind "...)
	return strconv.AppendInt(dst, e.Requested, 10)
}

// appendSegmentAndOffset appends a text such as " segment 2 offset 0x100000".
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
