package tuning

import "strings"

// Memory selects the buffers that a rule about the direct path covers. It is empty in a rule that
// chooses between the plain and the window path, because such a rule covers only symmetric buffers.
type Memory string

// The kinds of memory in rules about the direct path.
const (
	// Symmetric selects buffers in windows, at the same offsets on all ranks.
	Symmetric Memory = "symmetric"
	// Anywhere selects all other buffers.
	Anywhere Memory = "any"
)

func (m Memory) isValid() bool { return m == "" || m == Symmetric || m == Anywhere }

// Calls describes the calls that a rule covers, or a call for which a path is chosen.
type Calls struct {
	// Operation is the name of a driver.Operation, for example "AllReduce". A general rule has no
	// Operation and a zero Shape; it covers all operations and groups without a specific rule.
	Operation string `json:"operation,omitempty"`
	Shape
	// Memory selects the buffers, in rules about the direct path.
	Memory Memory `json:"memory,omitempty"`
}

func (c Calls) isGeneral() bool { return c.Operation == "" && c.Shape == Shape{} }

// String describes the calls, for example "AllGather on 4 ranks", "AllGather on 4 ranks, symmetric
// buffers" or "all operations, any buffers".
func (c Calls) String() string {
	var b strings.Builder
	if c.isGeneral() {
		b.WriteString("all operations")
	} else {
		b.WriteString(c.Operation + " on " + c.Shape.String())
	}
	if c.Memory != "" {
		b.WriteString(", " + string(c.Memory) + " buffers")
	}
	return b.String()
}
