package drivertest

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"symmem/driver"
	"symmem/internal/reduce"
)

// testOffers offers calls with every operation, type and reduction, several counts, and registered
// or unregistered buffers to every path, and prepares those that the path accepts. All ranks must
// get the same answers.
func testOffers(t *testing.T, h Harness) {
	b := newFixture(t, h, 2, 4<<20, options{})
	answers := make([]string, 2)
	b.each(func(r *rank) {
		b.offerAll(r, func(c *trial, refusal error) {
			answers[r.number] += fmt.Sprintf("%v: %v\n", c, refusal)
		})
	})
	if answers[0] != answers[1] {
		t.Error("the ranks got different answers")
	}
}

func testReductions(t *testing.T, h Harness) {
	b := newFixture(t, h, 2, 4<<20, options{})
	path := b.harness.Paths[0]
	for _, dataType := range dataTypes {
		if _, listed := h.Reductions[dataType]; !listed && h.Reductions != nil {
			t.Errorf("the harness lists no reductions of %v", dataType)
		}
	}
	b.each(func(r *rank) {
		b.offerAll(r, func(c *trial, refusal error) {
			listed := !c.operation.Reduces() || h.reduces(c.dataType, c.op)
			if refused := refusal != nil; c.path == path && b.harness.has(c.operation) && refused == listed {
				r.failf("%v: Refusal = %v; want refused = %v", c, refusal, !listed)
			}
		})
	})
}

func (b *fixture) offerAll(r *rank, report func(c *trial, refusal error)) {
	for o := range driver.Barrier + 1 {
		for _, dataType := range reduce.DataTypes() {
			for _, op := range driver.ReductionsOf(dataType) {
				for _, count := range []int64{0, 1, 70001} {
					for _, unregistered := range []bool{false, true} {
						c := &trial{
							operation: o, dataType: dataType, op: op, count: count, unregistered: unregistered,
						}
						b.offerToPaths(r, c, report)
					}
				}
			}
		}
	}
}

func (b *fixture) offerToPaths(r *rank, c *trial, report func(c *trial, refusal error)) {
	for c.path = range driver.Paths {
		if !c.operation.Takes(c.path) || c.unregistered && c.path == driver.PathWindow {
			continue
		}
		report(c, b.plan(r, c))
	}
}

func (b *fixture) plan(r *rank, c *trial) (refusal error) {
	call := c.uncheckedCall(r, b.send[r.number], b.recv[r.number])
	if call.Operation.PointToPoint() {
		call.Root = 1 - r.number
	}
	if !call.Operation.UsesWindows() {
		call.SendWindow, call.RecvWindow = nil, nil
	}
	offer := r.group.Offer(call)
	if refusal := offer.Refusal(c.path); refusal != nil {
		if !errors.Is(refusal, driver.ErrUnsupported) {
			r.failf("%v: Refusal = %v, want ErrUnsupported", c, refusal)
		}
		return refusal
	}
	if !slices.Contains(b.harness.Paths, c.path) || !b.harness.has(c.operation) {
		r.failf("%v: accepted, although the harness does not list the path or operation", c)
	}
	const digest = 7
	plan, err := offer.Take(c.path, digest)
	if err != nil {
		r.failf("%v: Take failed for a call that is not refused: %v", c, err)
	}
	if p := plan.Prepared(); p.Path != c.path || p.Digest != digest || p.Count != c.count {
		r.failf("%v: plan has path %v, digest %d, count %d; want %v, %d, %d", c, p.Path, p.Digest,
			p.Count, c.path, digest, c.count)
	}
	return nil
}
