package symmem

import (
	"cmp"
	"fmt"

	"symmem/driver"
)

// Explanation says how a collective would run. Its String is, for example, "AllReduce: plain path:
// the send buffer is in no window of the group". A window is memory that the ranks of the group
// have registered together.
type Explanation struct {
	Operation string `json:"operation"`
	// Path is "plain", "window", "direct" or "two-level".
	Path string `json:"path"`
	// Why gives the reason for Path. If the call requested or could use a direct path but does not
	// take it, Why includes the reason.
	Why string `json:"why"`
	// Registers reports whether the call would register memory first.
	Registers bool `json:"registers"`
}

// String formats the explanation as one line.
func (e Explanation) String() string {
	if e.Registers {
		return fmt.Sprintf("%s: %s path, after registering: %s", e.Operation, e.Path, e.Why)
	}

	return fmt.Sprintf("%s: %s path: %s", e.Operation, e.Path, e.Why)
}

// explain implements Group.Explain. It does not register memory, but chooses the path as if the
// buffers were registered where the collective would register them.
func (pl *planner) explain(
	op Operation, send, recv Memory, count int64, t DataType,
) (Explanation, error) {
	example := pl.exampleCall(op, send, recv, count, t)
	call := example.call()
	if err := cmp.Or(pl.life.err(), pl.validate(example, &call)); err != nil {
		return Explanation{}, err
	}

	where := pl.locations(&call).where // also sets the windows of call
	e := Explanation{Operation: op.String()}
	canRegisterNow := op.UsesWindows() && !pl.rt.captures.isAnyCapturing()
	if canRegisterNow {
		e.Registers = send.needsRegistration(pl.group) || recv.needsRegistration(pl.group)
		if pl.setFutureWindows(&call, send, recv) {
			where = "both buffers belong to pools that the group can register"
		}
	}

	offer, why, err := pl.router.route(example.choice, &call, where) // also sets call.Path
	if err != nil {
		return Explanation{}, err
	}

	e.Path, e.Why = call.Path.String(), why.String()
	if remarker, canRemark := offer.(driver.Remarker); canRemark {
		if remark := remarker.Remark(call.Path); remark != "" {
			e.Why += "; " + remark
		}
	}

	return e, nil
}

// setFutureWindows sets the windows of call if the collective would create them. It returns false
// if the buffers have windows, need none, or cannot be registered.
func (pl *planner) setFutureWindows(call *driver.Call, send, recv Memory) bool {
	needsWindows := call.SendWindow == nil && call.Count > 0
	canHaveWindows := pl.canRegister(send.pool) && pl.canRegister(recv.pool)
	if !needsWindows || !canHaveWindows {
		return false
	}

	call.SendWindow, call.RecvWindow = futureWindow{}, futureWindow{}
	return true
}

// exampleCall returns a call with the given arguments. All ranks have parts of equal size, and the
// peer of a message is the next rank.
func (pl *planner) exampleCall(
	op Operation, send, recv Memory, count int64, t DataType,
) *collective {
	c := &collective{operation: op, send: send, recv: recv, count: count, dataType: t}
	switch {
	case op.HasSplits():
		c.splits = evenSplits(op, count, len(pl.ranks))
		c.count = c.splits.CountOf(op, pl.rank)
	case op.PointToPoint():
		nextRank := (pl.rank + 1) % len(pl.ranks)
		c.root = nextRank // for messages, root is the peer
	}

	return c
}

// futureWindow is a placeholder for a window that does not exist yet.
type futureWindow struct{}

func (futureWindow) Deregister() error { return nil }

// canRegister reports whether all ranks of the group share the pool.
func (pl *planner) canRegister(p *Pool) bool {
	return p != nil && p.domain != nil && p.domain.contains(&pl.roster)
}
