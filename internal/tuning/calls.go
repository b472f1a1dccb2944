package tuning

import "strings"

// Memory selects the buffers that a rule about the direct path covers. It is empty in a rule that
// chooses between the plain and the window path, which are only available for symmetric buffers.
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

// Calls describes the calls that a rule covers, or the call for which a path is chosen.
type Calls struct {
	// Operation is the name of a driver.Operation, such as "AllReduce". It is empty, and Shape is
	// zero, in a general rule: it covers all operations and groups without a specific rule.
	Operation string `json:"operation,omitempty"`
	Shape
	// Memory selects the buffers, in rules about the direct path.
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
