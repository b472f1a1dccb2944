package controltest

import (
	"testing"

	"symmem/internal/control"
)

// Bench measures the operations that launch a collective. In the "crowded" benchmarks, two
// goroutines are the ranks, so results include the time of the Go scheduler. In the "processes"
// benchmarks, the second rank is another process.
func Bench(b *testing.B, join Join) {
	b.Helper()
	b.Run("submit", func(b *testing.B) {
		p := newGroup(b, join, 2, hangTimeout).planes[0]
		b.ReportAllocs()
		for b.Loop() {
			p.Submit()
		}
	})
	b.Run("try to submit", func(b *testing.B) {
		p := newGroup(b, join, 2, hangTimeout).planes[0]
		b.ReportAllocs()
		for b.Loop() {
			if _, ok := p.TrySubmit(); !ok {
				b.Fatal("the plane reports PeerFailed")
			}
		}
	})
	for _, wait := range []struct{ name, waitName string }{
		{"compare", "a comparison"}, {"value", "a value"}, {"exchange", "an exchange"},
	} {
		b.Run(wait.name, func(b *testing.B) {
			b.Run("crowded", func(b *testing.B) {
				benchGoroutines(b, join, waitFunctions[wait.waitName])
			})
			b.Run("processes", func(b *testing.B) { benchProcesses(b, join, wait.waitName) })
		})
	}
}

func benchGoroutines(b *testing.B, join Join, wait func(control.Plane) error) {
	g := newGroup(b, join, 2, hangTimeout)
	b.ReportAllocs()
	b.ResetTimer()
	g.mustRunOnEach(b, func(_ int, p control.Plane) error {
		for range b.N {
			if err := wait(p); err != nil {
				return err
			}
		}

		return nil
	})
}

func benchProcesses(b *testing.B, join Join, waitName string) {
	prog := program{
		WaitName: waitName, Store: serveStore(b), Rank: 1, Size: 2, Timeout: hangTimeout,
	}
	other := startProcess(b, 1, prog)
	prog.Rank = 0
	p, leave, err := prog.join(join)
	must(b, err)
	for range roundsToRun {
		must(b, waitFunctions[waitName](p))
	}

	other.awaitEvent("running")
	b.ReportAllocs()
	for b.Loop() {
		if err := waitFunctions[waitName](p); err != nil {
			b.Fatal(err)
		}
	}

	must(b, leave())
	// The other process must notice that this rank has left.
	if o := other.awaitEvent("outcome"); o.Kind != "deadlock" {
		b.Errorf("outcome of the other process = %+v, want a deadlock", o)
	}
}
