package tuning

import "strings"

// Memory selects the buffers that a rule about the direct path covers. It is empty in other rules.
type Memory string

// These values appear in rules about the direct path.
const (
	// Symmetric selects buffers in registered memory, at the same offsets on all ranks.
	Symmetric Memory = "symmetric"
	// AnyMemory selects all other buffers.
	AnyMemory Memory = "any"
)

func (m Memory) isValid() bool { return m == "" || m == Symmetric || m == AnyMemory }

// Calls describes the calls that a rule covers, or a single call.
type Calls struct {
	// Operation is the name of a driver.Operation, such as "AllReduce". A general rule has no
	// Operation and a zero Shape, and covers all calls without a specific rule.
	Operation string `json:"operation,omitempty"`
	Shape
	Memory Memory `json:"memory,omitempty"`
}

func (c Calls) isGeneral() bool { return c.Operation == "" && c.Shape == Shape{} }

// String returns a description such as "AllGather on 4 ranks, symmetric buffers".
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
