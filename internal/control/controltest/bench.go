package controltest

import (
	"testing"

	"symmem/internal/control"
)

// Bench measures Submit, TrySubmit, and waits of two ranks for each other.
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
				b.Fatal("TrySubmit returned no ticket")
			}
		}
	})
	b.Run("compare", func(b *testing.B) { benchWait(b, join, "a comparison") })
	b.Run("value", func(b *testing.B) { benchWait(b, join, "a value") })
	b.Run("exchange", func(b *testing.B) { benchWait(b, join, "an exchange") })
}

func benchWait(b *testing.B, join Join, waitName string) {
	b.Run("goroutines", func(b *testing.B) { benchGoroutines(b, join, waitFunctions[waitName]) })
	b.Run("processes", func(b *testing.B) { benchProcesses(b, join, waitName) })
}

// benchGoroutines measures waits of two ranks in this process.
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

// benchProcesses measures waits for rank 1 in another process, which repeats the same wait until
// rank 0 leaves the group.
func benchProcesses(b *testing.B, join Join, waitName string) {
	peerConfig := rankConfig{
		Task: waitName, Store: serveStore(b), Rank: 1, Size: 2, Timeout: hangTimeout,
	}
	ownConfig := peerConfig
	ownConfig.Rank = 0
	peer := startProcess(b, peerConfig)
	p, leave, err := ownConfig.join(join)
	must(b, err)
	wait := waitFunctions[waitName]
	for range warmUpRounds {
		must(b, wait(p))
	}

	peer.awaitEvent("running")
	b.ReportAllocs()
	for b.Loop() {
		if err := wait(p); err != nil {
			b.Fatal(err)
		}
	}

	must(b, leave())
	if e := peer.awaitOutcome(); e.Kind != "deadlock" {
		b.Errorf("the peer got %+v, want a DeadlockError because rank 0 has left", e)
	}
}
