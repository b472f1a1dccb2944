package tuning

import "strings"

// Memory says for which buffers a rule about the direct path is. A rule without one is about the
// choice between the plain and the window path, which only symmetric buffers have.
type Memory string

// The memories of rules about the direct path.
const (
	// Symmetric buffers lie in windows, at the same places on all ranks.
	Symmetric Memory = "symmetric"
	// Anywhere is where all other buffers lie.
	Anywhere Memory = "any"
)

// valid reports whether a memory is one that a rule can have.
func (m Memory) valid() bool { return m == "" || m == Symmetric || m == Anywhere }

// Calls are those that a rule is about, or one that is asked about.
type Calls struct {
	// Operation is the name that driver has for it, such as "AllReduce"; it is empty, and the Shape
	// zero, for all operations and groups that have no rule of their own.
	Operation string `json:"operation,omitempty"`
	// DataType is the type of elements, such as "float32", or empty for all types that have no rule
	// of their own.
	DataType string `json:"data_type,omitempty"`
	Shape
	// Memory is where buffers lie in rules about the direct path.
	Memory Memory `json:"memory,omitempty"`
	Half   Half   `json:"in_place,omitzero"`
}

// general reports whether these are calls of all operations on all groups.
func (c Calls) general() bool { return c.Operation == "" && c.Shape == Shape{} }

// overlap reports whether some call is one of both.
func (c Calls) overlap(other Calls) bool {
	return c.Shape == other.Shape && c.Operation == other.Operation &&
		c.DataType == other.DataType && c.Memory == other.Memory && c.Half.overlaps(other.Half)
}

// String names calls for people: "AllGather on 4 ranks", "AllGather of float32 in place on 4 ranks,
// symmetric buffers", "all operations, any buffers".
func (c Calls) String() string {
	var b strings.Builder
	if b.WriteString(c.Operation); c.general() {
		b.WriteString("all operations")
	}
	if c.DataType != "" {
		b.WriteString(" of " + c.DataType)
	}
	if c.Half != BothHalves {
		b.WriteString(" " + c.Half.String())
	}
	if !c.general() {
		b.WriteString(" on " + c.Shape.String())
	}
	if c.Memory != "" {
		b.WriteString(", " + string(c.Memory) + " buffers")
	}
	return b.String()
}
