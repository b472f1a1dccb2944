package drivertest

import (
	"context"
	"slices"
	"testing"

	"symmem/driver"
)

// Harness says how to open a backend and what it can do.
type Harness struct {
	// Open opens the device of one rank, as driver.Backend does.
	Open func(ctx context.Context, cfg driver.Config) (driver.Device, error)
	// Host makes zeroed memory of the host that Stream.Copy reads and writes; nil means Go memory.
	Host func(bytes int) []byte
	// Ranks is the size of the largest world that can be opened. Tests that need more are skipped.
	Ranks int
	// Paths lists the paths that collectives can take; nil means plain and window. With the direct
	// path what Direct refuses takes the first one.
	Paths []driver.Path
	// Without lists the collective operations that the backend does not have.
	Without []driver.Operation
	// Unordered tells that reductions combine ranks in an order of the backend's own. Tests then
	// use numbers whose sums and products are exact in every order.
	Unordered bool
	// Slow tells that a call costs much more here than elsewhere, as on a GPU of software. Of the
	// trials of all types and counts a third is made then: every count, with every third type.
	Slow bool
	// Drops tells that a stream which has failed drops its work, as driver.Stream says, and that
	// events carry the failure. Kernels that a GPU has been given run on.
	Drops bool
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

// has reports whether the backend has an operation.
func (h Harness) has(o driver.Operation) bool { return !slices.Contains(h.Without, o) }

// chapter is a part of the contract.
type chapter struct {
	name  string
	tests []contract
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
		{"memory", memoryContracts},
		{"streams", streamContracts},
		{"events", eventContracts},
		{"capture", captureContracts},
		{"collectives", collectiveContracts},
		{"groups", groupContracts},
		{"pairs", pairContracts},
		{"messages", messageContracts},
		{"splits", splitContracts},
		{"windows", windowContracts},
		{"mistakes", mistakeContracts},
		{"exchange", exchangeContracts},
		{"faults", faultContracts},
		{"closing", closingContracts},
	}
	if h.Drops {
		chapters = append(chapters, chapter{"failures", failureContracts})
	}
	for _, c := range chapters {
		t.Run(c.name, func(t *testing.T) {
			for _, s := range c.tests {
				t.Run(s.sentence, func(t *testing.T) { s.prove(t, h) })
			}
		})
	}
}
