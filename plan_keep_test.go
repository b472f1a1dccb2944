package symmem

import (
	"slices"
	"testing"

	"symmem/driver"
)

// TestCallsKeepAllGoSlices checks that the slices of a queued call stay reachable, and that no plan
// keeps them reachable afterwards.
func TestCallsKeepAllGoSlices(t *testing.T) {
	ids, weights := Host([]int32{1}), Host([]float32{1})
	inPool := Memory{pool: &Pool{}}
	c := &collective{
		operation: driver.Dispatch, send: inPool, recv: inPool,
		routed: &RouteArgs{IDs: ids, Weights: weights},
	}
	kept, _ := c.call().Keep.([6]Memory)
	for name, m := range map[string]Memory{"ids": ids, "weights": weights} {
		if !slices.Contains(kept[:], m) {
			t.Errorf("the call does not keep the %s", name)
		}
	}

	if c.isCacheable() {
		t.Error("a plan with Go slices is cacheable")
	}

	c.routed = &RouteArgs{IDs: inPool}
	if c.call().Keep != nil || !c.isCacheable() {
		t.Error("a call in a pool keeps memory, or its plan is not cacheable")
	}
}
