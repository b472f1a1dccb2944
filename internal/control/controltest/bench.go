package controltest

import (
	"testing"

	"symmem/internal/control"
)

// Bench measures the operations that a rank performs when it launches a collective. In the
// "crowded" benchmarks, the two ranks are goroutines of one process, so the results include the
// time that the Go scheduler takes. In the "processes" benchmarks, the second rank runs in
// another process.
func Bench(b *testing.B, join Join) {
	b.Helper()
	b.Run("submit", func(b *testing.B) {
		p := newWorld(b, join, 2, patience).planes[0]
		b.ReportAllocs()
		for b.Loop() {
			p.Submit()
		}
	})
	b.Run("try to submit", func(b *testing.B) {
		p := newWorld(b, join, 2, patience).planes[0]
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
			b.Run("crowded", func(b *testing.B) { benchShared(b, join, waits[wait.waitName]) })
			b.Run("processes", func(b *testing.B) { benchProcesses(b, join, wait.waitName) })
		})
	}
}

func benchShared(b *testing.B, join Join, wait func(control.Plane) error) {
	w := newWorld(b, join, 2, patience)
	b.ReportAllocs()
	b.ResetTimer()
	w.each(b, func(_ int, p control.Plane) error {
		for range b.N {
			if err := wait(p); err != nil {
				return err
			}
		}
		return nil
	})
}

func benchProcesses(b *testing.B, join Join, waitName string) {
	s := program{WaitName: waitName, Store: openStore(b), Rank: 1, Size: 2, Timeout: patience}
	other := startProcess(b, 1, s)
	s.Rank = 0
	p, leave, err := s.join(join)
	must(b, err)
	for range roundsToRun {
		must(b, waits[waitName](p))
	}
	other.await("running")
	b.ReportAllocs()
	for b.Loop() {
		if err := waits[waitName](p); err != nil {
			b.Fatal(err)
		}
	}
	must(b, leave())
	// The other process must notice that this rank has left.
	if o := other.await("outcome"); o.Kind != "deadlock" {
		b.Errorf("outcome of the other process = %+v, want a deadlock", o)
	}
}
