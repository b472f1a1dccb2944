package symmem

import (
	"fmt"

	"symmem/driver"
)

// Explanation says which path a collective takes, and why.
type Explanation struct {
	// Operation is the operation's name.
	Operation string `json:"operation"`
	// Path is "plain" or "window".
	Path string `json:"path"`
	// Why says what decided.
	Why string `json:"why"`
	// Registers tells that the call would register memory first.
	Registers bool `json:"registers"`
}

// String is one line for people.
func (e Explanation) String() string {
	if e.Registers {
		return fmt.Sprintf("%s: %s path, after registering: %s", e.Operation, e.Path, e.Why)
	}
	return fmt.Sprintf("%s: %s path: %s", e.Operation, e.Path, e.Why)
}

// Operation is a collective operation.
type Operation = driver.Operation

// The collective operations, as Explain takes them.
const (
	OpAllReduce     = driver.AllReduce
	OpAllGather     = driver.AllGather
	OpReduceScatter = driver.ReduceScatter
	OpBroadcast     = driver.Broadcast
	OpReduce        = driver.Reduce
	OpAllToAll      = driver.AllToAll
	OpSend          = driver.Send
	OpRecv          = driver.Recv
	OpBarrier       = driver.Barrier
)

// Explain tells which path a collective on these buffers would take now, and why. It does nothing
// and asks nobody.
func (g *Group) Explain(
	op Operation, send, recv Memory, count int64, t DataType,
) (Explanation, error) {
	r := request{operation: op, send: send, recv: recv, count: count, dataType: t}
	if err := g.check(&r); err != nil {
		return Explanation{}, fmt.Errorf("explaining %v: %w", op, err)
	}
	call, why := g.route(&r)
	e := Explanation{Operation: op.String(), Path: call.Path.String(), Why: why}
	if call.Path == driver.PathPlain && g.wouldRegister(&r) {
		e.Registers, e.Path = true, driver.PathWindow.String()
		e.Why = "both buffers are of pools that the group can register"
	}
	return e, nil
}

// wouldRegister tells whether takeOver would make the window path possible.
func (g *Group) wouldRegister(r *request) bool {
	if g.rt.capturing() || r.operation.PointToPoint() || r.count == 0 {
		return false
	}
	for _, m := range []Memory{r.send, r.recv} {
		p := m.pool
		if p == nil || p.domain == nil || !p.domain.contains(g) {
			return false
		}
	}
	return true
}
