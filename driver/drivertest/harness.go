package drivertest

import (
	"context"
	"slices"
	"strings"
	"testing"

	"symmem/driver"
)

// A backend's test calls Run. This call opens up to 4 ranks, and skips the tests of fused norms:
//
//	drivertest.Run(t, drivertest.Harness{
//		Open: Open, Ranks: 4,
//		Missing: map[drivertest.Part]string{drivertest.Norms: "there are no kernels"},
//	})

// Part names an optional part of the contract of backends.
type Part string

// The optional parts.
const (
	// Messages covers Send and Recv.
	Messages Part = "messages"
	// Splits covers AllToAllV, AllGatherV and ReduceScatterV.
	Splits Part = "splits"
	// Scatter covers segments at random addresses; see driver.Config.Scatter.
	Scatter Part = "scatter"
	// Failures covers failed streams, which skip their work and pass their error on to events.
	Failures Part = "failures"
	// Anytime means that Close and Abort return even while other groups connect or wait for peers.
	// If all ranks share a CUDA context, it is missing: freeing memory waits for all kernels.
	Anytime Part = "closing at any time"
	// Suspension covers driver.SuspendableSegment and driver.SuspendableWindow.
	Suspension Part = "suspension"
	// Norms covers AllReduceRMSNorm and ReduceScatterRMSNorm.
	Norms Part = "fused norms"
	// Routes covers Dispatch, Combine and driver.Permuter.
	Routes Part = "routes"
)

const mandatory Part = "" // covers the rest; must not be in Harness.Missing

// Harness opens a backend and describes its capabilities.
type Harness struct {
	// Open is like driver.Backend.Open.
	Open func(ctx context.Context, cfg driver.Config) (driver.Device, error)
	// Host allocates zeroed host memory that Stream.Copy can access. The default is Go memory.
	Host func(bytes int) []byte
	// Ranks is the largest number of ranks. Tests that need more are skipped.
	Ranks int
	// Paths lists the paths that the backend supports. The default is PathPlain and PathWindow. If
	// another path refuses a call, most tests use the first path instead.
	Paths []driver.Path
	// Reductions lists the reductions of the first path for each data type, such as "sum prod". If
	// the map is nil, the path supports all reductions.
	Reductions map[driver.DataType]string
	// Missing maps each part that the backend lacks to the reason, which skipped tests print.
	Missing map[Part]string
	// Unordered means that reductions without a formula combine the ranks in an unknown order. The
	// tests then reduce numbers whose sums and products are exact in every order.
	Unordered bool
	// Slow makes some tests try fewer combinations of types and counts.
	Slow bool
}

// withDefaults returns a copy of h with default values for nil fields.
func (h Harness) withDefaults() Harness {
	if h.Host == nil {
		h.Host = func(bytes int) []byte { return make([]byte, bytes) }
	}

	if h.Paths == nil {
		h.Paths = []driver.Path{driver.PathPlain, driver.PathWindow}
	}

	return h
}

// skipsTrial reports whether to skip a trial. Slow backends run only every third trial.
func (h Harness) skipsTrial(index int) bool { return h.Slow && index%3 != 0 }

// hasReduction reports whether the first path supports a reduction of a type.
func (h Harness) hasReduction(t driver.DataType, op driver.ReduceOp) bool {
	if h.Reductions == nil {
		return true
	}

	names := strings.Fields(h.Reductions[t])
	return slices.Contains(names, op.String())
}

// require skips the test if the backend lacks a part.
func (h Harness) require(t *testing.T, part Part) {
	t.Helper()
	if reason, isMissing := h.Missing[part]; isMissing {
		t.Skipf("the backend does not support %s: %s", part, reason)
	}
}

// hasOperation reports whether the backend supports o. It must not be called for Norms or Routes.
func (h Harness) hasOperation(o driver.Operation) bool {
	part := mandatory
	switch {
	case o.PointToPoint():
		part = Messages
	case o.HasSplits():
		part = Splits
	}

	_, isMissing := h.Missing[part]
	return !isMissing
}

// requirement is a sentence of the contract and its test.
type requirement struct {
	text string
	test func(t *testing.T, h Harness)
}

type chapter struct {
	name         string
	requirements []requirement
	part         Part // the chapter is skipped if the backend lacks it
}

// Run tests the whole contract.
func Run(t *testing.T, h Harness) {
	t.Helper()
	h = h.withDefaults()
	chapters := []chapter{
		{"memory", memoryRequirements, mandatory},
		{"streams", streamRequirements, mandatory},
		{"events", eventRequirements, mandatory},
		{"capture", captureRequirements, mandatory},
		{"collectives", slices.Concat(collectiveRequirements, offerRequirements), mandatory},
		{"formulas", formulaRequirements, mandatory},
		{"norms", normRequirements, Norms},
		{"routes", routeRequirements, Routes},
		{"groups", groupRequirements, mandatory},
		{"transfers", transferRequirements, Messages},
		{"messages", slices.Concat(messageRequirements, strictRequirements), Messages},
		{"splits", splitRequirements, Splits},
		{"windows", windowRequirements, mandatory},
		{"suspension", suspendRequirements, Suspension},
		{"mistakes", mistakeRequirements, mandatory},
		{"exchange", exchangeRequirements, mandatory},
		{"faults", faultRequirements, mandatory},
		{"closing", closingRequirements, mandatory},
		{"failures", failureRequirements, Failures},
	}
	for _, c := range chapters {
		t.Run(c.name, func(t *testing.T) {
			h.require(t, c.part)
			for _, r := range c.requirements {
				t.Run(r.text, func(t *testing.T) { r.test(t, h) })
			}
		})
	}
}
