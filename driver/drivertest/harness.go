package drivertest

import (
	"context"
	"slices"
	"strings"
	"testing"

	"symmem/driver"
)

// Part names an optional part of the contract. Backends must satisfy all other parts.
type Part string

// The optional parts. The comment on each part explains what its absence means for users of a
// backend. Harness.Paths and Harness.Ranks limit the paths and the number of ranks. The contract
// does not cover interfaces in driver/optional.go that are not mentioned here.
const (
	// Messages covers Send and Recv. A backend without this part refuses them, so pipelines need
	// another way to pass data on.
	Messages Part = "messages"
	// Splits covers AllToAllV, AllGatherV and ReduceScatterV. A backend without this part refuses
	// them, so callers must pad all parts to the size of the largest and use AllToAll, AllGather
	// and ReduceScatter.
	Splits Part = "splits"
	// Scatter covers Config.Scatter, which reveals mistakes that affect only paths that use
	// windows.
	Scatter Part = "scatter"
	// Failures requires a failed stream to skip its work, as driver.Stream specifies, and events to
	// carry the error. A backend without this part cannot stop kernels that are already queued on
	// the GPU, so until the stream is synchronized, these kernels use data that was never computed.
	Failures Part = "failures"
	// Anytime requires Close and Abort to return even while other groups connect and wait. Ranks
	// that share a CUDA context cannot guarantee this: to free memory, the context waits until all
	// its kernels have completed, and in the meantime launches no other kernel, not even one for
	// which another rank is waiting.
	Anytime Part = "closing at any time"
	// Suspension requires segments and windows to be driver.SuspendableSegments and
	// driver.SuspendableWindows. A backend without this part cannot release the memory of a pool
	// temporarily.
	Suspension Part = "suspension"
	// Norms covers AllReduceRMSNorm. A backend without this part refuses it, so callers must reduce,
	// add and normalize separately.
	Norms Part = "fused norms"
)

// Harness opens a backend and describes its capabilities.
type Harness struct {
	// Open opens the device of one rank, like driver.Backend.
	Open func(ctx context.Context, cfg driver.Config) (driver.Device, error)
	// Host allocates zeroed host memory that Stream.Copy can access. If Host is nil, tests use Go
	// memory.
	Host func(bytes int) []byte
	// Ranks is the size of the largest world that can be opened. Tests that need more ranks are
	// skipped.
	Ranks int
	// Paths lists the paths that collectives can use. If it is nil, the paths are plain and window.
	// Most tests make a call that a path refuses on the first path in the list instead.
	Paths []driver.Path
	// Reductions maps each data type to the names of the reductions that the first path supports,
	// separated by spaces. The first path must refuse all other reductions. If Reductions is nil,
	// it supports all of them.
	Reductions map[driver.DataType]string
	// Without maps each part that the backend lacks to the reason, which skipped tests print.
	Without map[Part]string
	// Unordered means that reductions combine ranks in an unspecified order, so that tests use
	// numbers whose sums and products are exact in any order.
	Unordered bool
	// Slow means that calls take much longer than usual, as on the software GPU, so that tests try
	// only a third of the combinations of types and counts.
	Slow bool
}

// skips reports whether to skip the trial with the given index to save time.
func (h Harness) skips(index int) bool { return h.Slow && index%3 != 0 }

func (h Harness) withDefaults() Harness {
	if h.Host == nil {
		h.Host = func(bytes int) []byte { return make([]byte, bytes) }
	}
	if h.Paths == nil {
		h.Paths = []driver.Path{driver.PathPlain, driver.PathWindow}
	}
	return h
}

func (h Harness) reduces(t driver.DataType, op driver.ReduceOp) bool {
	return h.Reductions == nil || slices.Contains(strings.Fields(h.Reductions[t]), op.String())
}

func (h Harness) require(t *testing.T, part Part) {
	t.Helper()
	if reason, missing := h.Without[part]; missing {
		t.Skipf("the backend does not support %s: %s", part, reason)
	}
}

func (h Harness) has(o driver.Operation) bool {
	part := Part("")
	switch {
	case o.PointToPoint():
		part = Messages
	case o.HasSplits():
		part = Splits
	}
	_, missing := h.Without[part]
	return !missing
}

// chapter is a list of related clauses of the contract.
type chapter struct {
	name    string
	clauses []clause
	part    Part // the optional part that the chapter tests; "" if the chapter is mandatory
}

// clause is a sentence of the contract and the function that tests it.
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
		{"pairs", pairClauses, Messages},
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
