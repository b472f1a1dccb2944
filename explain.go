package symmem

import (
	"fmt"

	"symmem/driver"
)

// Explanation says which path a collective takes, and why.
type Explanation struct {
	// Operation is the operation's name.
	Operation string `json:"operation"`
	// Path is "plain", "window" or "direct".
	Path string `json:"path"`
	// Why says what decided; and, if the call was to go direct or could, why it does not.
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
	OpAllToAllV     = driver.AllToAllV
)

// explanation is that of a call whose path is chosen, or, where its memory would be registered
// first, is chosen here.
func (g planner) explanation(r *wholeRequest, call *driver.Call, why reason) Explanation {
	_, _, missing := g.places(call)
	e := Explanation{
		Operation: call.Operation.String(), Path: call.Path.String(), Why: why.String(),
	}
	op, send, recv := call.Operation, r.send, r.recv
	if g.rt.capturing(nil) || op.PointToPoint() || op == OpAllToAllV {
		return e
	}
	e.Registers = g.wouldRegister(send.pool) || g.wouldRegister(recv.pool)
	if missing != "" && call.Count > 0 && g.serves(send.pool) && g.serves(recv.pool) {
		call.SendWindow, call.RecvWindow = windowToBe{}, windowToBe{}
		path, why := g.prefer(r.choice, call, true,
			"both buffers are of pools that the group can register")
		call.Path = path
		e.Path, e.Why = path.String(), why.String()
	}
	return e
}

// windowToBe stands for a window that a call would have once its memory is registered.
type windowToBe struct{}

// Deregister does nothing.
func (windowToBe) Deregister() error { return nil }

// serves reports whether the group can register a pool's memory.
func (g planner) serves(p *Pool) bool {
	return p != nil && p.domain != nil && p.domain.contains(g.Group)
}

// wouldRegister reports whether takeOver would register memory of a pool.
func (g planner) wouldRegister(p *Pool) bool {
	return g.serves(p) && (g.memberOf(p) == nil || g.owes(p))
}
