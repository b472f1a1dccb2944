package drivertest

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"symmem/driver"
	"symmem/internal/reduce"
)

func testEqualRefusals(t *testing.T, h Harness) {
	bw := newBufferWorld(t, h, 2, 4<<20, options{})
	var refusals [2][]string
	bw.onEachRank(func(r *rank) {
		bw.offerAllCalls(r, func(tr *trial, refusal error) {
			refusals[r.number] = append(refusals[r.number], fmt.Sprintf("%v: %v", tr, refusal))
		})
	})
	for i := range min(len(refusals[0]), len(refusals[1])) {
		if refusals[0][i] != refusals[1][i] {
			t.Fatalf("refusals differ: rank 0: %s; rank 1: %s", refusals[0][i], refusals[1][i])
		}
	}
	if len(refusals[0]) != len(refusals[1]) {
		t.Errorf("the ranks offered %d and %d calls, want the same number", len(refusals[0]),
			len(refusals[1]))
	}
}

func testReductions(t *testing.T, h Harness) {
	bw := newBufferWorld(t, h, 2, 4<<20, options{})
	firstPath := bw.harness.Paths[0]
	for _, dataType := range dataTypes {
		if _, isListed := h.Reductions[dataType]; !isListed && h.Reductions != nil {
			t.Errorf("the harness lists no reductions of %v", dataType)
		}
	}
	bw.onEachRank(func(r *rank) {
		bw.offerAllCalls(r, func(tr *trial, refusal error) {
			isListed := !tr.operation.Reduces() || h.hasReduction(tr.dataType, tr.op)
			if tr.path != firstPath || !bw.harness.hasOperation(tr.operation) {
				return
			}
			if isListed && refusal != nil {
				r.failf("%v: Refusal = %v, want nil for a listed reduction", tr, refusal)
			}
			if !isListed && refusal == nil {
				r.failf("%v: Refusal = nil, want an error for an unlisted reduction", tr)
			}
		})
	})
}

// offerAllCalls prepares all combinations of arguments on all paths, without launching the calls.
// It passes each result of Offer.Refusal to handleRefusal.
func (bw *bufferWorld) offerAllCalls(
	r *rank, handleRefusal func(tr *trial, refusal error),
) {
	for o := range driver.Barrier + 1 {
		for _, dataType := range reduce.DataTypes() {
			for _, op := range driver.ReductionsOf(dataType) {
				for _, count := range []int64{0, 1, 70001} {
					for _, isUnregistered := range []bool{false, true} {
						tr := &trial{
							operation: o, dataType: dataType, op: op, count: count,
							isUnregistered: isUnregistered,
						}
						bw.offerToPaths(r, tr, handleRefusal)
					}
				}
			}
		}
	}
}

func (bw *bufferWorld) offerToPaths(
	r *rank, tr *trial, handleRefusal func(tr *trial, refusal error),
) {
	for tr.path = range driver.Paths {
		if tr.isUnregistered && tr.path == driver.PathWindow {
			continue
		}
		if !tr.operation.SupportsPath(tr.path) {
			continue
		}
		handleRefusal(tr, bw.tryPrepare(r, tr))
	}
}

// tryPrepare returns the refusal of a call or, if there is none, checks the prepared plan.
func (bw *bufferWorld) tryPrepare(r *rank, tr *trial) (refusal error) {
	call := tr.uncheckedCall(r, bw.send[r.number], bw.recv[r.number])
	if call.Operation.PointToPoint() {
		call.Root = 1 - r.number
	}
	if !call.Operation.UsesWindows() {
		call.SendWindow, call.RecvWindow = nil, nil
	}
	offer := r.group.Offer(call)
	refusal = offer.Refusal(tr.path)
	if refusal != nil {
		if !errors.Is(refusal, driver.ErrUnsupported) {
			r.failf("%v: Refusal = %v, want ErrUnsupported", tr, refusal)
		}
		return refusal
	}
	if !slices.Contains(bw.harness.Paths, tr.path) || !bw.harness.hasOperation(tr.operation) {
		r.failf("%v: Refusal = nil, but the harness does not list the path or operation", tr)
	}
	const digest = 7
	plan, err := offer.Take(tr.path, digest)
	if err != nil {
		r.failf("%v: Refusal = nil, but Take returned the error %v", tr, err)
	}
	if p := plan.Prepared(); p.Path != tr.path || p.Digest != digest || p.Count != tr.count {
		r.failf("%v: plan has path %v, digest %d, count %d; want %v, %d, %d", tr, p.Path, p.Digest,
			p.Count, tr.path, digest, tr.count)
	}
	return nil
}
