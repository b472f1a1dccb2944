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
	switch {
	case e.Kind == KindCollective && e.Call != nil:
		return e.Call.AppendText(dst, Names{}), nil
	case e.Kind == KindFault:
		return append(append(dst, "fault: "...), e.Text...), nil
	case e.Kind.IsGroupEvent():
		return e.appendGroupEvent(dst), nil
	case e.Kind >= KindScopeBegin && e.Kind <= KindScopeAbandon:
		return e.appendGroupName(append(dst, e.Kind.String()...), " of"), nil
	}
	return e.appendGroupName(e.appendPoolEvent(dst), " with"), nil
}

func (e *Event) appendGroupName(dst []byte, preposition string) []byte {
	if e.Name == "" {
		return dst
	}
	return append(append(append(dst, preposition...), " group "...), e.Name...)
}

func (e *Event) appendGroupEvent(dst []byte) []byte {
	if e.Kind == KindStep {
		if e.Name != "" {
			dst = append(dst, "step "...)
		}
		dst = append(append(dst, e.Text...), ", after "...)
		dst = strconv.AppendUint(dst, e.Collectives, 10)
		if e.Collectives == 1 {
			return append(dst, " collective"...)
		}
		return append(dst, " collectives"...)
	}
	if e.Name != "" {
		dst = append(strconv.AppendQuote(dst, e.Name), ": "...)
	}
	dst = append(append(dst, e.Operation...), " of "...)
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

// appendFloat appends ".0" if the number would otherwise look like an integer.
func appendFloat(dst []byte, value float64) []byte {
	begin := len(dst)
	dst = strconv.AppendFloat(dst, value, 'g', -1, 64)
	if !bytes.ContainsAny(dst[begin:], ".eIN") {
		dst = append(dst, ".0"...)
	}
	return dst
}

func (e *Event) appendPoolEvent(dst []byte) []byte {
	dst = append(append(dst, e.Kind.String()...), ' ')
	dst = strconv.AppendInt(dst, e.Size, 10)
	if e.Kind == KindNote && e.Segment == -1 && e.Offset == 0 && e.Stream == 0 {
		return strconv.AppendInt(append(dst, " of kind "...), e.Requested, 10)
	}
	dst = append(dst, " B ("...)
	omittedBytes := int64(0) // the requested size that the text omits
	if e.Kind.isPlacement() {
		omittedBytes = e.Size
	}
	if e.Requested != omittedBytes {
		dst = strconv.AppendInt(append(dst, "asked "...), e.Requested, 10)
		dst = append(dst, " B, "...)
	}
	dst = strconv.AppendUint(append(dst, "stream "...), uint64(e.Stream), 10)
	dst = append(dst, ')')
	if e.Segment == -1 && e.Offset == 0 {
		return dst
	}
	preposition := " at"
	if e.Kind.isPlacement() {
		preposition = " ->"
	}
	return appendSegmentAndOffset(append(dst, preposition...), e.Segment, e.Offset)
}

func appendSegmentAndOffset(dst []byte, segment int32, offset int64) []byte {
	dst = strconv.AppendInt(append(dst, " segment "...), int64(segment), 10)
	dst = append(dst, " offset "...)
	if offset < 0 {
		dst = append(dst, '-')
		offset = -offset
	}
	return strconv.AppendUint(append(dst, "0x"...), uint64(offset), 16)
}
