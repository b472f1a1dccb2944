package drivertest

import (
	"context"
	"slices"
	"strings"
	"testing"

	"symmem/driver"
)

// Part names an optional part of the contract.
type Part string

// The optional parts. Harness.Paths and Harness.Ranks also limit the contract.
const (
	// Messages covers Send and Recv.
	Messages Part = "messages"
	// Splits covers AllToAllV, AllGatherV and ReduceScatterV.
	Splits Part = "splits"
	// Scatter covers Config.Scatter.
	Scatter Part = "scatter"
	// Failures requires a failed stream to skip its work, and events to carry the error. A backend
	// cannot do this if queued kernels on a GPU cannot be stopped.
	Failures Part = "failures"
	// Anytime requires Close and Abort to return even while other groups connect and wait. Ranks
	// that share a CUDA context cannot guarantee this. To free memory, the context waits until all
	// its kernels have completed, and in the meantime launches no other kernel.
	Anytime Part = "closing at any time"
	// Suspension requires segments and windows to be driver.SuspendableSegments and
	// driver.SuspendableWindows.
	Suspension Part = "suspension"
	// Norms covers AllReduceRMSNorm.
	Norms Part = "fused norms"
)

// Harness opens a backend and describes its capabilities.
type Harness struct {
	// Open is like driver.Backend.Open.
	Open func(ctx context.Context, cfg driver.Config) (driver.Device, error)
	// Host allocates zeroed host memory that Stream.Copy can access. If Host is nil, tests use Go
	// memory.
	Host func(bytes int) []byte
	// Ranks is the size of the largest world. Tests that need more ranks are skipped.
	Ranks int
	// Paths lists the paths of collectives, by default plain and window. If a path refuses a call,
	// most tests use the first path in the list instead.
	Paths []driver.Path
	// Reductions maps each data type to the names, separated by spaces, of exactly those reductions
	// that the first path supports. If it is nil, the path supports all of them.
	Reductions map[driver.DataType]string
	// Missing maps each missing part to the reason, which skipped tests print.
	Missing map[Part]string
	// Unordered means that reductions combine ranks in an unspecified order. Tests then use numbers
	// whose sums and products are exact.
	Unordered bool
	// Slow means that tests should try only a third of the combinations of types and counts.
	Slow bool
}

func (h Harness) skipsTrial(index int) bool { return h.Slow && index%3 != 0 }

func (h Harness) withDefaults() Harness {
	if h.Host == nil {
		h.Host = func(bytes int) []byte { return make([]byte, bytes) }
	}
	if h.Paths == nil {
		h.Paths = []driver.Path{driver.PathPlain, driver.PathWindow}
	}
	return h
}

func (h Harness) hasReduction(t driver.DataType, op driver.ReduceOp) bool {
	return h.Reductions == nil || slices.Contains(strings.Fields(h.Reductions[t]), op.String())
}

func (h Harness) require(t *testing.T, part Part) {
	t.Helper()
	if reason, missing := h.Missing[part]; missing {
		t.Skipf("the backend does not support %s: %s", part, reason)
	}
}

func (h Harness) hasOperation(o driver.Operation) bool {
	part := Part("")
	switch {
	case o.PointToPoint():
		part = Messages
	case o.HasSplits():
		part = Splits
	}
	_, missing := h.Missing[part]
	return !missing
}

type chapter struct {
	name    string
	clauses []clause
	part    Part // the optional part that the chapter tests, or ""
}

// clause is a sentence of the contract and its test.
type clause struct {
	sentence string
	test     func(t *testing.T, h Harness)
}

// Run tests the whole contract.
func Run(t *testing.T, h Harness) {
	t.Helper()
	h = h.withDefaults()
	chapters := []chapter{
		{"memory", memoryClauses, ""},
		{"streams", streamClauses, ""},
		{"events", eventClauses, ""},
		{"capture", captureClauses, ""},
		{"collectives", collectiveClauses, ""},
		{"formulas", formulaClauses, ""},
		{"norms", normClauses, Norms},
		{"groups", groupClauses, ""},
		{"transfers", transferClauses, Messages},
		{"messages", messageClauses, Messages},
		{"splits", splitClauses, Splits},
		{"windows", windowClauses, ""},
		{"suspension", suspendClauses, Suspension},
		{"mistakes", mistakeClauses, ""},
		{"exchange", exchangeClauses, ""},
		{"faults", faultClauses, ""},
		{"closing", closingClauses, ""},
		{"failures", failureClauses, Failures},
	}
	for _, c := range chapters {
		t.Run(c.name, func(t *testing.T) {
			h.require(t, c.part)
			for _, s := range c.clauses {
				t.Run(s.sentence, func(t *testing.T) { s.test(t, h) })
			}
		})
	}
}
