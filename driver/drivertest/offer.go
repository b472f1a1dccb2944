package drivertest

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"symmem/driver"
	"symmem/internal/reduce"
)

// proveOffers offers every operation, type and reduction with some counts, in and outside of
// windows, to every path, and plans the calls that are not refused.
func proveOffers(t *testing.T, h Harness) {
	b := newBench(t, h, 2, 4<<20, options{})
	answers := make([]string, 2)
	b.each(func(r *rank) {
		b.askAll(r, func(c *trial, refusal error) {
			answers[r.number] += fmt.Sprintf("%v: %v\n", c, refusal)
		})
	})
	if answers[0] != answers[1] {
		t.Error("the ranks have different answers")
	}
}

// askAll offers all calls as one rank, and passes the answers to note.
func (b *bench) askAll(r *rank, note func(c *trial, refusal error)) {
	for o := range driver.Barrier + 1 {
		for _, dataType := range reduce.DataTypes() {
			for _, op := range driver.ReductionsOf(dataType) {
				for _, count := range []int64{0, 1, 70001} {
					for _, loose := range []bool{false, true} {
						c := &trial{operation: o, dataType: dataType, op: op, count: count, loose: loose}
						b.ask(r, c, note)
					}
				}
			}
		}
	}
}

// ask offers one call to the paths, as far as its operation has them.
func (b *bench) ask(r *rank, c *trial, note func(c *trial, refusal error)) {
	for c.path = range driver.Paths {
		if !c.operation.Takes(c.path) || c.loose && c.path == driver.PathWindow {
			continue
		}
		note(c, b.take(r, c))
	}
}

// take plans a call on the trial's path, unless the path refuses it.
func (b *bench) take(r *rank, c *trial) (refusal error) {
	call := c.laid(r, b.send[r.number], b.recv[r.number])
	if call.Operation.PointToPoint() {
		call.Root = 1 - r.number
	}
	if !call.Operation.UsesWindows() {
		call.SendWindow, call.RecvWindow = nil, nil
	}
	offer := r.group.Offer(call)
	if refusal := offer.Refusal(c.path); refusal != nil {
		if !errors.Is(refusal, driver.ErrUnsupported) {
			r.failf("%v: the refusal is no ErrUnsupported: %v", c, refusal)
		}
		return refusal
	}
	if !slices.Contains(b.harness.Paths, c.path) || !b.harness.has(c.operation) {
		r.failf("%v: a path or an operation that the backend does not have is not refused", c)
	}
	const digest = 7
	plan, err := offer.Take(c.path, digest)
	if err != nil {
		r.failf("%v: nothing is refused, but: %v", c, err)
	}
	if p := plan.Prepared(); p.Path != c.path || p.Digest != digest || p.Count != c.count {
		r.failf("%v: the plan is %+v", c, p)
	}
	return nil
}
