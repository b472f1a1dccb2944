package drivertest

import (
	"context"
	"testing"

	"symmem/driver"
)

// Part is a part of the contract that a backend may leave out. All else it must pass.
type Part string

// The parts that may be left out, and what that means for users of the backend. Paths are left out
// by Harness.Paths, numbers of ranks by Harness.Ranks; what an interface of driver/optional.go
// offers is not in the contract.
const (
	// Messages are Send and Recv. A backend without them refuses them in offers, and pipelines need
	// another way to send.
	Messages Part = "messages"
	// Splits is AllToAllV. A backend without it refuses it in offers, and callers take an AllToAll
	// of the largest part.
	Splits Part = "splits"
	// Scatter is Config.Scatter, which shows mistakes that only paths over windows can make.
	Scatter Part = "scatter"
	// Failures means that a failed stream drops its work, as driver.Stream says, and that events
	// carry the failure. A backend without it cannot stop kernels that the GPU already has: work
	// behind a failure uses data that was never computed, until the stream is synchronized.
	Failures Part = "failures"
	// Anytime means that Close and Abort return while other groups connect and wait. It cannot hold
	// where the ranks of a test share a CUDA context: a context frees memory only once all its
	// kernels have ended, and launches none in the meantime, not even those that other ranks wait
	// for.
	Anytime Part = "closing at any time"
)

// Harness says how to open a backend and what it can do.
type Harness struct {
	// Open opens the device of one rank, as driver.Backend does.
	Open func(ctx context.Context, cfg driver.Config) (driver.Device, error)
	// Host makes zeroed memory of the host that Stream.Copy reads and writes; nil means Go memory.
	Host func(bytes int) []byte
	// Ranks is the size of the largest world that can be opened. Tests that need more are skipped.
	Ranks int
	// Paths lists the paths that collectives can take; nil means plain and window. A call that its
	// path refuses takes the first one in most tests.
	Paths []driver.Path
	// Without are the parts of the contract that the backend leaves out, with the reason, which
	// skipped tests print.
	Without map[Part]string
	// Unordered means that reductions combine ranks in an order of the backend's own. Tests then
	// use numbers whose sums and products are exact in every order.
	Unordered bool
	// Slow means that calls take much longer than elsewhere, as on the software GPU. Tests then try
	// only a third of all pairs of type and count: every count, with every third type.
	Slow bool
}

// spares reports whether a trial is left out.
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

// need skips a test of a part that the backend leaves out.
func (h Harness) need(t *testing.T, part Part) {
	t.Helper()
	if why, without := h.Without[part]; without {
		t.Skipf("the backend leaves out %s: %s", part, why)
	}
}

// has reports whether the backend has an operation.
func (h Harness) has(o driver.Operation) bool {
	part := map[driver.Operation]Part{
		driver.Send: Messages, driver.Recv: Messages, driver.AllToAllV: Splits,
	}[o]
	_, without := h.Without[part]
	return !without
}

// chapter is a part of the contract.
type chapter struct {
	name  string
	tests []contract
	// part is empty if the chapter may not be left out.
	part Part
}

// contract is one sentence of the contract and its proof.
type contract struct {
	sentence string
	prove    func(t *testing.T, h Harness)
}

// Run proves the whole contract.
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
