package drivertest

import (
	"errors"
	"fmt"
	"testing"

	"symmem/driver"
	"symmem/internal/reduce"
)

// proveDirect asks of every operation, type, reduction and some counts, over windows and outside of
// them, whether it goes direct, and prepares it on that path.
func proveDirect(t *testing.T, h Harness) {
	b := newBench(t, h, 2, 4<<20, options{})
	answers := make([]string, 2)
	must(t, b.each(func(r *rank) error {
		return b.askDirect(r, func(c *trial, refusal error) {
			answers[r.number] += fmt.Sprintf("%v: %v\n", c, refusal)
		})
	}))
	if answers[0] != answers[1] {
		t.Error("the ranks have different answers")
	}
}

// askDirect asks about all calls as one rank, and notes the answers.
func (b *bench) askDirect(r *rank, note func(c *trial, refusal error)) error {
	for o := range driver.Barrier + 1 {
		for _, dataType := range reduce.DataTypes() {
			for op := range driver.ReduceOp(driver.ReduceOps) {
				for _, count := range []int64{0, 1, 70001} {
					for _, loose := range []bool{false, true} {
						c := &trial{operation: o, dataType: dataType, op: op, count: count, loose: loose}
						if o.PointToPoint() {
							c.root = 1 - r.number
						}
						refusal, err := b.prepareDirect(r, c)
						if err != nil {
							return fmt.Errorf("%v: %w", c, err)
						}
						c.root = 0
						note(c, refusal)
					}
				}
			}
		}
	}
	return nil
}

// prepareDirect prepares a call on the direct path, which must go as Direct says.
func (b *bench) prepareDirect(r *rank, c *trial) (refusal, err error) {
	call := c.call(r, b.send[r.number], b.recv[r.number])
	call.Path = driver.PathDirect
	if call.Operation == driver.Barrier {
		call.SendWindow, call.RecvWindow = nil, nil
	}
	refusal = r.group.Direct(&call)
	_, err = r.group.Prepare(call)
	unsupported := errors.Is(refusal, driver.ErrUnsupported) && errors.Is(err, driver.ErrUnsupported)
	if unsupported || refusal == nil && err == nil {
		return refusal, nil
	}
	return refusal, fmt.Errorf("direct says %w, but prepare %w", refusal, err)
}
