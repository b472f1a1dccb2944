package tuning

import "strings"

// Memory names the buffers that a rule about the direct path covers. It is empty in a rule that
// chooses between the plain and the window path, which only symmetric buffers have.
type Memory string

// The memories of rules about the direct path.
const (
	// Symmetric buffers lie in windows, at the same offsets on all ranks.
	Symmetric Memory = "symmetric"
	// Anywhere covers all other buffers.
	Anywhere Memory = "any"
)

// valid reports whether a rule can have the memory.
func (m Memory) valid() bool { return m == "" || m == Symmetric || m == Anywhere }

// Calls describes the calls that a rule covers, or the call that a choice is made for.
type Calls struct {
	// Operation has the name of a driver.Operation, such as "AllReduce". It is empty, and Shape is
	// zero, in a general rule: one for all operations and groups without a rule of their own.
	Operation string `json:"operation,omitempty"`
	Shape
	// Memory says where the buffers lie, in rules about the direct path.
	Memory Memory `json:"memory,omitempty"`
}

// general reports whether these are the calls of a general rule.
func (c Calls) general() bool { return c.Operation == "" && c.Shape == Shape{} }

// String describes the calls: "AllGather on 4 ranks", "AllGather on 4 ranks, symmetric buffers",
// "all operations, any buffers".
func (c Calls) String() string {
	var b strings.Builder
	if c.general() {
		b.WriteString("all operations")
	} else {
		b.WriteString(c.Operation + " on " + c.Shape.String())
	}
	if c.Memory != "" {
		b.WriteString(", " + string(c.Memory) + " buffers")
	}
	return b.String()
}
