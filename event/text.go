package event

import "strconv"

// String returns the text of [Event.AppendText].
func (e Event) String() string {
	text, _ := e.AppendText(nil)
	return string(text)
}

// AppendText appends a description of the event to dst, without its number, pool, group and call
// site. It covers every field that ranks compare, so that different events have different texts.
// Fields that do not apply are omitted, such as the request of a free or the segment of a
// reservation:
//
//	alloc 1048576 B (stream 0) -> segment 2 offset 0x100000
//	free 1048576 B (asked 1000000 B, stream 0) at segment 2 offset 0x100000
//	note 4096 of kind 7
//
// The error is always nil: the method implements encoding.TextAppender.
func (e Event) AppendText(dst []byte) ([]byte, error) {
	return e.appendPlacement(dst), nil
}

func (e *Event) appendPlacement(dst []byte) []byte {
	dst = append(append(dst, e.Kind.String()...), ' ')
	dst = strconv.AppendInt(dst, e.Size, 10)
	if e.Kind == KindNote && e.Segment == -1 && e.Offset == 0 && e.Stream == 0 {
		return strconv.AppendInt(append(dst, " of kind "...), e.Requested, 10)
	}
	dst = append(dst, " B ("...)
	usual := int64(0) // a request that is not printed
	if e.Kind.places() {
		usual = e.Size
	}
	if e.Requested != usual {
		dst = strconv.AppendInt(append(dst, "asked "...), e.Requested, 10)
		dst = append(dst, " B, "...)
	}
	dst = strconv.AppendUint(append(dst, "stream "...), uint64(e.Stream), 10)
	dst = append(dst, ')')
	if e.Segment == -1 && e.Offset == 0 {
		return dst
	}
	arrow := " at"
	if e.Kind.places() {
		arrow = " ->"
	}
	return appendPlace(append(dst, arrow...), e.Segment, e.Offset)
}

// appendPlace appends a segment and an offset in it.
func appendPlace(dst []byte, segment int32, offset int64) []byte {
	dst = strconv.AppendInt(append(dst, " segment "...), int64(segment), 10)
	dst = append(dst, " offset "...)
	if offset < 0 {
		dst = append(dst, '-')
		offset = -offset
	}
	return strconv.AppendUint(append(dst, "0x"...), uint64(offset), 16)
}
