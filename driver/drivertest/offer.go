package drivertest

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"symmem/driver"
	"symmem/internal/reduce"
)

// A path is an algorithm of the backend. Offer.Refusal returns an error if a path does not support
// the offered call. Otherwise, Offer.Take returns a plan, which can be launched. Ranks choose paths
// separately but must agree, so a path must refuse the same calls on all ranks.

var offerRequirements = []requirement{
	{"a path refuses the same calls on all ranks", testEqualRefusals},
	{"the first path supports every type and exactly the listed reductions", testReductions},
}

func testEqualRefusals(t *testing.T, h Harness) {
	bw := newBufferWorld(t, h, 2, 4<<20, options{})
	var refusals [2][]string // by rank; each string names a call and its refusal
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

func testReductions(t *testing.T, h Harness) {
	bw := newBufferWorld(t, h, 2, 4<<20, options{})
	firstPath := h.Paths[0]
	if h.Reductions != nil {
		for _, dataType := range reduce.DataTypes() {
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

			mustSupport := !tr.operation.Reduces() || h.hasReduction(tr.dataType, tr.op)
			if mustSupport && refusal != nil {
				r.failf("%v: Refusal = %v, want nil", tr, refusal)
			}

			if !mustSupport && refusal == nil {
				r.failf("%v: Refusal = nil, want an error for an unlisted reduction", tr)
			}
		})
	})
}

// offerAllCalls offers calls with all combinations of arguments on all paths. It passes each
// refusal, which may be nil, to handleRefusal.
func (bw *bufferWorld) offerAllCalls(
	r *rank, handleRefusal func(tr *trial, refusal error),
) {
	const endOfSimpleOperations = driver.Barrier + 1 // most later ones need more arguments
	for o := range endOfSimpleOperations {
		for _, dataType := range reduce.DataTypes() {
			for _, op := range driver.ReductionsOf(dataType) {
				const large = 70001
				for _, count := range []int64{0, 1, large} {
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

// offerToPaths offers a trial's call on each path that supports the operation.
func (bw *bufferWorld) offerToPaths(
	r *rank, tr *trial, handleRefusal func(tr *trial, refusal error),
) {
	for path := range driver.Paths { // the number of paths
		if tr.isUnregistered && path == driver.PathWindow {
			continue // the path needs registered buffers
		}

		if !tr.operation.SupportsPath(path) {
			continue
		}

		variant := *tr
		variant.path = path
		offer := r.group.Offer(bw.callToOffer(r, &variant))
		refusal := offer.Refusal(path)
		if refusal == nil {
			bw.checkAccepted(r, &variant, offer)
		} else if !errors.Is(refusal, driver.ErrUnsupported) {
			r.failf("%v: Refusal = %v, want ErrUnsupported", &variant, refusal)
		}

		handleRefusal(&variant, refusal)
	}
}

func (bw *bufferWorld) callToOffer(r *rank, tr *trial) driver.Call {
	call := tr.callOnPath(r, bw.send[r.number], bw.recv[r.number])
	if call.Operation.PointToPoint() {
		peer := 1 - r.number
		call.Root = peer
	}

	if !call.Operation.UsesWindows() {
		call.SendWindow = nil
		call.RecvWindow = nil
	}

	return call
}

// checkAccepted checks that the harness lists the path and the operation of an accepted offer, and
// that its plan matches the trial.
func (bw *bufferWorld) checkAccepted(r *rank, tr *trial, offer driver.Offer) {
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

	call := plan.Prepared()
	if call.Path != tr.path {
		r.failf("%v: the plan has path %v, want %v", tr, call.Path, tr.path)
	}

	if call.Digest != digest {
		r.failf("%v: the plan has digest %d, want %d", tr, call.Digest, digest)
	}

	if call.Count != tr.count {
		r.failf("%v: the plan has count %d, want %d", tr, call.Count, tr.count)
	}
}
