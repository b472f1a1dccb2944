package symmem

import (
	"cmp"
	"fmt"

	"symmem/driver"
)

// Explanation describes the path of a collective: the way in which it runs. For example, its String
// is "AllReduce: plain path: the send buffer is in no window of the group". A window is memory that
// the ranks of the group have registered together.
type Explanation struct {
	Operation string `json:"operation"`
	// Path is "plain", "window", "direct" or "two-level".
	Path string `json:"path"`
	// Why gives the reason for Path, and for not using a direct path that was requested or possible.
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

// explain implements Group.Explain. It registers nothing, but assumes the windows that the
// collective would register.
func (pl *planner) explain(
	op Operation, send, recv Memory, count int64, t DataType,
) (Explanation, error) {
	c := pl.exampleCall(op, send, recv, count, t)
	call := c.call()
	if err := cmp.Or(pl.life.err(), pl.validate(c, &call)); err != nil {
		return Explanation{}, err
	}

	where := pl.locations(&call).where // sets the windows of call
	e := Explanation{Operation: op.String()}
	canRegisterNow := op.UsesWindows() && !pl.rt.captures.isAnyCapturing()
	if canRegisterNow {
		e.Registers = send.needsRegistration(pl.group) || recv.needsRegistration(pl.group)
		needsWindows := call.SendWindow == nil && call.Count > 0
		canHaveWindows := pl.canRegister(send.pool) && pl.canRegister(recv.pool)
		if needsWindows && canHaveWindows {
			call.SendWindow, call.RecvWindow = futureWindow{}, futureWindow{}
			where = "both buffers belong to pools that the group can register"
		}
	}

	offer, why, err := pl.router.route(c.choice, &call, where) // sets call.Path
	if err != nil {
		return Explanation{}, err
	}

	e.Path, e.Why = call.Path.String(), why.String()
	if r, canRemark := offer.(driver.Remarker); canRemark {
		if remark := r.Remark(call.Path); remark != "" {
			e.Why += "; " + remark
		}
	}

	return e, nil
}

// exampleCall returns a call with the given arguments, parts of equal size for all ranks, and the
// next rank as the peer of a message.
func (pl *planner) exampleCall(
	op Operation, send, recv Memory, count int64, t DataType,
) *collective {
	c := &collective{operation: op, send: send, recv: recv, count: count, dataType: t}
	switch {
	case op.HasSplits():
		c.splits = evenSplits(op, count, len(pl.ranks))
		c.count = c.splits.CountOf(op, pl.rank)
	case op.PointToPoint():
		c.root = (pl.rank + 1) % len(pl.ranks) // the peer
	}

	return c
}

// futureWindow stands for a window that a registration would create.
type futureWindow struct{}

func (futureWindow) Deregister() error { return nil }

// canRegister requires that all ranks of the group share the pool.
func (pl *planner) canRegister(p *Pool) bool {
	return p != nil && p.domain != nil && p.domain.contains(&pl.roster)
}
