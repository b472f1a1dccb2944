package drivertest

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"symmem/driver"
	"symmem/internal/reduce"
)

// The tests in this file offer calls to a group without launching them. An Offer can refuse a call
// on a path. A path must refuse the same calls on all ranks, because ranks choose a path without
// communicating.

func testEqualRefusals(t *testing.T, h Harness) {
	bw := newBufferWorld(t, h, 2, 4<<20, options{})
	var refusals [2][]string // texts by rank
	bw.onEachRank(func(r *rank) {
		bw.offerAllCalls(r, func(tr *trial, refusal error) {
			text := fmt.Sprintf("%v: %v", tr, refusal)
			refusals[r.number] = append(refusals[r.number], text)
		})
	})
	first, second := refusals[0], refusals[1]
	for i := range min(len(first), len(second)) {
		if first[i] != second[i] {
			t.Fatalf("refusals differ: rank 0: %s; rank 1: %s", first[i], second[i])
		}
	}

	if len(first) != len(second) {
		t.Errorf("the ranks offered %d and %d calls, want the same number", len(first), len(second))
	}
}

// testReductions compares Harness.Reductions with the refusals of the first path.
func testReductions(t *testing.T, h Harness) {
	bw := newBufferWorld(t, h, 2, 4<<20, options{})
	firstPath := bw.harness.Paths[0]
	if h.Reductions != nil {
		for _, dataType := range dataTypes {
			if _, isListed := h.Reductions[dataType]; !isListed {
				t.Errorf("the harness lists no reductions of %v", dataType)
			}
		}
	}

	bw.onEachRank(func(r *rank) {
		bw.offerAllCalls(r, func(tr *trial, refusal error) {
			if tr.path != firstPath || !h.hasOperation(tr.operation) {
				return
			}

			isListed := !tr.operation.Reduces() || h.hasReduction(tr.dataType, tr.op)
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
	for o := range driver.Barrier + 1 { // Barrier is the last operation without other arguments
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

// offerToPaths prepares a trial's call on each path that supports the operation.
func (bw *bufferWorld) offerToPaths(
	r *rank, tr *trial, handleRefusal func(tr *trial, refusal error),
) {
	for path := range driver.Paths {
		if tr.isUnregistered && path == driver.PathWindow {
			continue // Offer.Refusal requires windows
		}

		if !tr.operation.SupportsPath(path) {
			continue
		}

		tr.path = path
		refusal := bw.tryPrepare(r, tr)
		handleRefusal(tr, refusal)
	}
}

// tryPrepare returns the refusal of a call. If there is none, it checks the prepared plan.
func (bw *bufferWorld) tryPrepare(r *rank, tr *trial) (refusal error) {
	call := tr.uncheckedCall(r, bw.send[r.number], bw.recv[r.number])
	if call.Operation.PointToPoint() {
		call.Root = 1 - r.number // the other rank
	}

	if !call.Operation.UsesWindows() {
		call.SendWindow = nil
		call.RecvWindow = nil
	}

	offer := r.group.Offer(call)
	refusal = offer.Refusal(tr.path)
	if refusal != nil {
		if !errors.Is(refusal, driver.ErrUnsupported) {
			r.failf("%v: Refusal = %v, want ErrUnsupported", tr, refusal)
		}

		return refusal
	}

	if !slices.Contains(bw.harness.Paths, tr.path) {
		r.failf("%v: Refusal = nil, but the harness does not list the path", tr)
	}

	if !bw.harness.hasOperation(tr.operation) {
		r.failf("%v: Refusal = nil, but the harness lacks the operation", tr)
	}

	const digest = 7
	plan, err := offer.Take(tr.path, digest)
	if err != nil {
		r.failf("%v: Refusal = nil, but Take returned the error %v", tr, err)
	}

	got := plan.Prepared()
	if got.Path != tr.path {
		r.failf("%v: the plan has path %v, want %v", tr, got.Path, tr.path)
	}

	if got.Digest != digest {
		r.failf("%v: the plan has digest %d, want %d", tr, got.Digest, digest)
	}

	if got.Count != tr.count {
		r.failf("%v: the plan has count %d, want %d", tr, got.Count, tr.count)
	}

	return nil
}
