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

// calls are those that a rule is about, or one call that is asked about.
type calls struct {
	operation string // empty for all that have no rule of their own
	dataType  string // likewise
	group     Shape  // the zero Shape with them
	memory    Memory
	half      Half
}

// calls are those that the rule is about.
func (r *Rule) calls() calls {
	return calls{
		operation: r.Operation, dataType: r.DataType, group: r.Shape, memory: r.Memory, half: r.Half,
	}
}

// general reports whether these are calls of all operations on all groups.
func (c calls) general() bool { return c.operation == "" && c.group == Shape{} }

// overlap reports whether some call is one of both.
func (c calls) overlap(other calls) bool {
	return c.group == other.group && c.operation == other.operation &&
		c.dataType == other.dataType && c.memory == other.memory && c.half.overlaps(other.half)
}

// String names calls for people: "AllGather on 4 ranks", "AllGather of float32 in place on 4 ranks,
// symmetric buffers", "all operations, any buffers".
func (c calls) String() string {
	var b strings.Builder
	if b.WriteString(c.operation); c.general() {
		b.WriteString("all operations")
	}
	if c.dataType != "" {
		b.WriteString(" of " + c.dataType)
	}
	if c.half != BothHalves {
		b.WriteString(" " + c.half.String())
	}
	if !c.general() {
		b.WriteString(" on " + c.group.String())
	}
	if c.memory != "" {
		b.WriteString(", " + string(c.memory) + " buffers")
	}
	return b.String()
}
