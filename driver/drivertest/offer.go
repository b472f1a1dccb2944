package drivertest

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"symmem/driver"
	"symmem/internal/reduce"
)

// testOffers offers calls of all kinds to every path, and prepares those that the path accepts.
func testOffers(t *testing.T, h Harness) {
	fx := newFixture(t, h, 2, 4<<20, options{})
	answers := make([]string, 2)
	fx.each(func(r *rank) {
		fx.offerAll(r, func(tr *trial, refusal error) {
			answers[r.number] += fmt.Sprintf("%v: %v\n", tr, refusal)
		})
	})
	if answers[0] != answers[1] {
		t.Error("the ranks got different answers")
	}
}

func testReductions(t *testing.T, h Harness) {
	fx := newFixture(t, h, 2, 4<<20, options{})
	path := fx.harness.Paths[0]
	for _, dataType := range dataTypes {
		if _, listed := h.Reductions[dataType]; !listed && h.Reductions != nil {
			t.Errorf("the harness lists no reductions of %v", dataType)
		}
	}
	fx.each(func(r *rank) {
		fx.offerAll(r, func(tr *trial, refusal error) {
			listed := !tr.operation.Reduces() || h.hasReduction(tr.dataType, tr.op)
			if tr.path != path || !fx.harness.hasOperation(tr.operation) {
				return
			}
			if refused := refusal != nil; refused == listed {
				r.failf("%v: Refusal = %v; want refused = %v", tr, refusal, !listed)
			}
		})
	})
}

func (fx *fixture) offerAll(r *rank, report func(tr *trial, refusal error)) {
	for o := range driver.Barrier + 1 {
		for _, dataType := range reduce.DataTypes() {
			for _, op := range driver.ReductionsOf(dataType) {
				for _, count := range []int64{0, 1, 70001} {
					for _, unregistered := range []bool{false, true} {
						tr := &trial{
							operation: o, dataType: dataType, op: op, count: count, unregistered: unregistered,
						}
						fx.offerToPaths(r, tr, report)
					}
				}
			}
		}
	}
}

func (fx *fixture) offerToPaths(r *rank, tr *trial, report func(tr *trial, refusal error)) {
	for tr.path = range driver.Paths {
		if !tr.operation.Takes(tr.path) || tr.unregistered && tr.path == driver.PathWindow {
			continue
		}
		report(tr, fx.plan(r, tr))
	}
}

func (fx *fixture) plan(r *rank, tr *trial) (refusal error) {
	call := tr.uncheckedCall(r, fx.send[r.number], fx.recv[r.number])
	if call.Operation.PointToPoint() {
		call.Root = 1 - r.number
	}
	if !call.Operation.UsesWindows() {
		call.SendWindow, call.RecvWindow = nil, nil
	}
	offer := r.group.Offer(call)
	if refusal := offer.Refusal(tr.path); refusal != nil {
		if !errors.Is(refusal, driver.ErrUnsupported) {
			r.failf("%v: Refusal = %v, want ErrUnsupported", tr, refusal)
		}
		return refusal
	}
	if !slices.Contains(fx.harness.Paths, tr.path) || !fx.harness.hasOperation(tr.operation) {
		r.failf("%v: accepted, although the harness does not list the path or operation", tr)
	}
	const digest = 7
	plan, err := offer.Take(tr.path, digest)
	if err != nil {
		r.failf("%v: Take failed for a call that is not refused: %v", tr, err)
	}
	if p := plan.Prepared(); p.Path != tr.path || p.Digest != digest || p.Count != tr.count {
		r.failf("%v: plan has path %v, digest %d, count %d; want %v, %d, %d", tr, p.Path, p.Digest,
			p.Count, tr.path, digest, tr.count)
	}
	return nil
}
