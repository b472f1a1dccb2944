package symmem

import (
	"cmp"
	"fmt"

	"symmem/driver"
)

// Explanation describes the path that a collective takes, and the reason.
type Explanation struct {
	Operation string `json:"operation"`
	// Path is "plain", "window", "direct" or "two-level".
	Path string `json:"path"`
	// Why is the reason, and why the direct path is not taken if it was requested or possible.
	Why string `json:"why"`
	// Registers is set if the call would register memory first.
	Registers bool `json:"registers"`
}

// String formats the explanation as one line.
func (e Explanation) String() string {
	if e.Registers {
		return fmt.Sprintf("%s: %s path, after registering: %s", e.Operation, e.Path, e.Why)
	}

	return fmt.Sprintf("%s: %s path: %s", e.Operation, e.Path, e.Why)
}

// explain assumes that the buffers are registered.
func (pl *planner) explain(
	op Operation, send, recv Memory, count int64, t DataType,
) (Explanation, error) {
	c := &collective{operation: op, send: send, recv: recv, count: count, dataType: t}
	switch {
	case op.HasSplits():
		c.splits = evenSplits(op, count, len(pl.ranks))
		c.count = c.splits.CountOf(op, pl.rank)
	case op.PointToPoint():
		c.root = (pl.rank + 1) % len(pl.ranks)
	}

	call := c.call()
	if err := cmp.Or(pl.life.err(), pl.validate(c, &call)); err != nil {
		return Explanation{}, err
	}

	where := pl.locations(&call).where
	e := Explanation{Operation: op.String()}
	if op.UsesWindows() && !pl.rt.captures.isAnyCapturing() {
		e.Registers = send.needsRegistration(pl.group) || recv.needsRegistration(pl.group)
		if call.SendWindow == nil && call.Count > 0 &&
			pl.canRegister(send.pool) && pl.canRegister(recv.pool) {
			call.SendWindow, call.RecvWindow = futureWindow{}, futureWindow{}
			where = "both buffers belong to pools that the group can register"
		}
	}

	offer, why, err := pl.router.route(c.choice, &call, where)
	if err != nil {
		return Explanation{}, err
	}

	e.Path, e.Why = call.Path.String(), why.String()
	if r, ok := offer.(driver.Remarker); ok {
		if text := r.Remark(call.Path); text != "" {
			e.Why += "; " + text
		}
	}

	return e, nil
}

// futureWindow stands for a window that a registration would create.
type futureWindow struct{}

// Deregister does nothing.
func (futureWindow) Deregister() error { return nil }

func (pl *planner) canRegister(p *Pool) bool {
	return p != nil && p.domain != nil && p.domain.contains(&pl.roster)
}
