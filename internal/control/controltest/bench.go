package controltest

import (
	"testing"

	"symmem/internal/control"
)

// Bench measures how long a rank takes to announce a collective to another rank, and to wait for
// that rank in three kinds of calls. The two ranks are goroutines of one process ("crowded") or
// different processes.
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
	for _, wait := range []struct {
		benchName string
		waitName  string // key of waitFunctions
	}{
		{"compare", "a comparison"},
		{"value", "a value"},
		{"exchange", "an exchange"},
	} {
		b.Run(wait.benchName, func(b *testing.B) {
			b.Run("crowded", func(b *testing.B) {
				benchGoroutines(b, join, waitFunctions[wait.waitName])
			})
			b.Run("processes", func(b *testing.B) { benchProcesses(b, join, wait.waitName) })
		})
	}
}

// benchGoroutines measures a wait of two ranks in this process.
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

// benchProcesses measures waits for another process, which repeats the same wait until this process
// leaves the group.
func benchProcesses(b *testing.B, join Join, waitName string) {
	prog := program{
		WaitName: waitName, Store: serveStore(b), Rank: 1, Size: 2, Timeout: hangTimeout,
	}
	other := startProcess(b, 1, prog)
	prog.Rank = 0
	p, leave, err := prog.join(join)
	must(b, err)
	wait := waitFunctions[waitName]
	for range roundsToRun { // the other process then reports "running"
		must(b, wait(p))
	}

	other.awaitEvent("running")
	b.ReportAllocs()
	for b.Loop() {
		if err := wait(p); err != nil {
			b.Fatal(err)
		}
	}

	must(b, leave())
	if o := other.awaitEvent("outcome"); o.Kind != "deadlock" {
		b.Errorf("the other process got %+v, want a deadlock with the rank that has left", o)
	}
}
