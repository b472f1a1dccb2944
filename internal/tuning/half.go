package tuning

import (
	"fmt"
	"strconv"
)

// Half says which calls of an operation a rule is about: nccl-tests halves its rows so. A call
// works in place where its smaller buffer is the rank's own part of the larger one, or both are
// one.
type Half uint8

// The halves.
const (
	// BothHalves are all calls.
	BothHalves Half = iota
	// OutOfPlace are calls whose buffers lie apart.
	OutOfPlace
	// InPlace are calls that work in place.
	InPlace
)

// halfOf is the half of one call.
func halfOf(inPlace bool) Half {
	if inPlace {
		return InPlace
	}
	return OutOfPlace
}

// overlaps reports whether some call is of both.
func (h Half) overlaps(other Half) bool {
	return h == other || h == BothHalves || other == BothHalves
}

// String is empty for both halves.
func (h Half) String() string {
	switch h {
	case OutOfPlace:
		return "out of place"
	case InPlace:
		return "in place"
	default:
		return ""
	}
}

// MarshalJSON writes what a rule about one half says about in_place.
func (h Half) MarshalJSON() ([]byte, error) { return strconv.AppendBool(nil, h == InPlace), nil }

// UnmarshalJSON reads what a rule says about in_place: true or false. A rule about both halves says
// nothing.
func (h *Half) UnmarshalJSON(encoded []byte) error {
	text := string(encoded)
	if text != "true" && text != "false" {
		return fmt.Errorf("in_place is %.20s, but must be true or false, or be left out for both", text)
	}
	*h = halfOf(text == "true")
	return nil
}

// HalfOf is the half that a time of the rule was measured in.
func (r *Rule) HalfOf(p Point) Half {
	if r.Half == BothHalves {
		return halfOf(p.InPlace)
	}
	return r.Half
}
