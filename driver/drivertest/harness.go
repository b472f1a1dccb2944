package drivertest

import (
	"context"
	"testing"

	"symmem/driver"
)

// Part is an optional part of the contract. Backends must satisfy the rest.
type Part string

// The optional parts, and the consequences for users of a backend that lacks them. Harness.Paths
// and Harness.Ranks limit paths and numbers of ranks. The interfaces in driver/optional.go are not
// part of the contract.
const (
	// Messages covers Send and Recv. A backend without it refuses them when they are offered, and
	// pipelines need another way to send.
	Messages Part = "messages"
	// Splits covers AllToAllV. A backend without it refuses the operation when it is offered, and
	// callers use AllToAll with the size of the largest part.
	Splits Part = "splits"
	// Scatter covers Config.Scatter, which reveals mistakes that only paths over windows can make.
	Scatter Part = "scatter"
	// Failures means that a failed stream drops its work, as driver.Stream specifies, and that
	// events carry the failure. A backend without it cannot stop kernels that the GPU already has:
	// work behind a failure uses data that was never computed, until the stream is synchronized.
	Failures Part = "failures"
	// Anytime means that Close and Abort return while other groups connect and wait. It cannot hold
	// if the ranks of a test share a CUDA context: a context frees memory only once all its kernels
	// have ended, and launches none in the meantime, not even those that other ranks wait for.
	Anytime Part = "closing at any time"
)

// Harness opens a backend and describes its capabilities.
type Harness struct {
	// Open opens the device of one rank, like driver.Backend.
	Open func(ctx context.Context, cfg driver.Config) (driver.Device, error)
	// Host allocates zeroed host memory that Stream.Copy can access; nil means Go memory.
	Host func(bytes int) []byte
	// Ranks is the size of the largest world that can be opened. Larger tests are skipped.
	Ranks int
	// Paths lists the paths that collectives can take; nil means plain and window. In most tests, a
	// call that its path refuses takes the first one.
	Paths []driver.Path
	// Without maps the parts that the backend lacks to the reason, which skipped tests print.
	Without map[Part]string
	// Unordered means that reductions combine ranks in an unspecified order. Tests then use numbers
	// whose sums and products are exact in every order.
	Unordered bool
	// Slow means that calls take much longer than usual, as on the software GPU. Tests then try
	// only a third of all pairs of type and count: every count, with every third type.
	Slow bool
}

// spares reports whether a trial is skipped.
func (h Harness) spares(turn int) bool { return h.Slow && turn%3 != 0 }

func (h Harness) withDefaults() Harness {
	if h.Host == nil {
		h.Host = func(bytes int) []byte { return make([]byte, bytes) }
	}
	if h.Paths == nil {
		h.Paths = []driver.Path{driver.PathPlain, driver.PathWindow}
	}
	return h
}

// need skips a test if the backend lacks the part.
func (h Harness) need(t *testing.T, part Part) {
	t.Helper()
	if why, without := h.Without[part]; without {
		t.Skipf("the backend leaves out %s: %s", part, why)
	}
}

// has reports whether the backend supports an operation.
func (h Harness) has(o driver.Operation) bool {
	part := map[driver.Operation]Part{
		driver.Send: Messages, driver.Recv: Messages, driver.AllToAllV: Splits,
	}[o]
	_, without := h.Without[part]
	return !without
}

// chapter groups statements of the contract.
type chapter struct {
	name  string
	tests []contract
	// part is set for optional chapters.
	part Part
}

// contract holds a statement of the contract and the function that tests it.
type contract struct {
	sentence string
	prove    func(t *testing.T, h Harness)
}

// Run tests the whole contract.
func Run(t *testing.T, h Harness) {
	t.Helper()
	h = h.withDefaults()
	chapters := []chapter{
		{"memory", memoryContracts, ""},
		{"streams", streamContracts, ""},
		{"events", eventContracts, ""},
		{"capture", captureContracts, ""},
		{"collectives", collectiveContracts, ""},
		{"formulas", formulaContracts, ""},
		{"groups", groupContracts, ""},
		{"pairs", pairContracts, Messages},
		{"messages", messageContracts, Messages},
		{"splits", splitContracts, Splits},
		{"windows", windowContracts, ""},
		{"mistakes", mistakeContracts, ""},
		{"exchange", exchangeContracts, ""},
		{"faults", faultContracts, ""},
		{"closing", closingContracts, ""},
		{"failures", failureContracts, Failures},
	}
	for _, c := range chapters {
		t.Run(c.name, func(t *testing.T) {
			h.need(t, c.part)
			for _, s := range c.tests {
				t.Run(s.sentence, func(t *testing.T) { s.prove(t, h) })
			}
		})
	}
}
