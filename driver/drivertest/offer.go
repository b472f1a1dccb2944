package drivertest

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"symmem/driver"
	"symmem/internal/reduce"
)

// testEqualRefusals prepares calls of all kinds on every path, unless the path refuses the call.
func testEqualRefusals(t *testing.T, h Harness) {
	bw := newBufferWorld(t, h, 2, 4<<20, options{})
	refusals := make([]string, 2)
	bw.onEachRank(func(r *rank) {
		bw.offerAllCalls(r, func(tc *collectiveCase, refusal error) {
			refusals[r.number] += fmt.Sprintf("%v: %v\n", tc, refusal)
		})
	})
	if refusals[0] != refusals[1] {
		t.Error("a path refused different calls on the two ranks")
	}
}

func testReductions(t *testing.T, h Harness) {
	bw := newBufferWorld(t, h, 2, 4<<20, options{})
	path := bw.harness.Paths[0]
	for _, dataType := range dataTypes {
		if _, isListed := h.Reductions[dataType]; !isListed && h.Reductions != nil {
			t.Errorf("the harness lists no reductions of %v", dataType)
		}
	}
	bw.onEachRank(func(r *rank) {
		bw.offerAllCalls(r, func(tc *collectiveCase, refusal error) {
			isListed := !tc.operation.Reduces() || h.hasReduction(tc.dataType, tc.op)
			if tc.path != path || !bw.harness.hasOperation(tc.operation) {
				return
			}
			if isListed && refusal != nil {
				r.failf("%v: Refusal = %v, want nil for a listed reduction", tc, refusal)
			}
			if !isListed && refusal == nil {
				r.failf("%v: Refusal = nil, want an error for an unlisted reduction", tc)
			}
		})
	})
}

func (bw *bufferWorld) offerAllCalls(
	r *rank, handleRefusal func(tc *collectiveCase, refusal error),
) {
	for o := range driver.Barrier + 1 {
		for _, dataType := range reduce.DataTypes() {
			for _, op := range driver.ReductionsOf(dataType) {
				for _, count := range []int64{0, 1, 70001} {
					for _, isUnregistered := range []bool{false, true} {
						tc := &collectiveCase{
							operation: o, dataType: dataType, op: op, count: count,
							isUnregistered: isUnregistered,
						}
						bw.offerToPaths(r, tc, handleRefusal)
					}
				}
			}
		}
	}
}

func (bw *bufferWorld) offerToPaths(
	r *rank, tc *collectiveCase, handleRefusal func(tc *collectiveCase, refusal error),
) {
	for tc.path = range driver.Paths {
		if !tc.operation.Takes(tc.path) || tc.isUnregistered && tc.path == driver.PathWindow {
			continue
		}
		handleRefusal(tc, bw.tryPrepare(r, tc))
	}
}

func (bw *bufferWorld) tryPrepare(r *rank, tc *collectiveCase) (refusal error) {
	call := tc.uncheckedCall(r, bw.send[r.number], bw.recv[r.number])
	if call.Operation.PointToPoint() {
		call.Root = 1 - r.number
	}
	if !call.Operation.UsesWindows() {
		call.SendWindow, call.RecvWindow = nil, nil
	}
	offer := r.group.Offer(call)
	if refusal := offer.Refusal(tc.path); refusal != nil {
		if !errors.Is(refusal, driver.ErrUnsupported) {
			r.failf("%v: Refusal = %v, want ErrUnsupported", tc, refusal)
		}
		return refusal
	}
	if !slices.Contains(bw.harness.Paths, tc.path) || !bw.harness.hasOperation(tc.operation) {
		r.failf("%v: Refusal = nil, but the harness does not list the path or operation", tc)
	}
	const digest = 7
	tryPrepare, err := offer.Take(tc.path, digest)
	if err != nil {
		r.failf("%v: Refusal = nil, but Take returned the error %v", tc, err)
	}
	if p := tryPrepare.Prepared(); p.Path != tc.path || p.Digest != digest || p.Count != tc.count {
		r.failf("%v: plan has path %v, digest %d, count %d; want %v, %d, %d", tc, p.Path, p.Digest,
			p.Count, tc.path, digest, tc.count)
	}
	return nil
}
