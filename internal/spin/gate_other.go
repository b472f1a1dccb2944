//go:build race || !(linux && amd64)

package spin

import "sync/atomic"

// Gate counts the calls inside a section, so that the goroutine that closes the section can wait
// for them. Any number of goroutines may be inside. Close admits no more calls; Empty then reports
// whether those inside have left. The zero Gate is open. A Gate must not be copied after first use.
type Gate struct {
	inside atomic.Int64 // calls inside, plus closed per Close
}

// Pass is returned by Gate.Enter and passed to Gate.Leave.
type Pass struct{}

const closed = 1 << 32

// Enter begins a call, which ends with Leave, or returns false if the gate is closed.
func (g *Gate) Enter() (Pass, bool) {
	if g.inside.Add(1) >= closed {
		g.inside.Add(-1)
		return Pass{}, false
	}
	return Pass{}, true
}

// EnterAs would begin a call with a plain store. It is not available here.
func (g *Gate) EnterAs(Goroutine) Pass { return Pass{} }

// Goroutine identifies a goroutine among those that run.
type Goroutine struct{}

// Self returns the running goroutine.
func Self() Goroutine { return Goroutine{} }

// Leave ends a call.
func (g *Gate) Leave(Pass) { g.inside.Add(-1) }

// Close admits no more calls until Open is called as often.
func (g *Gate) Close() { g.inside.Add(closed) }

// Open undoes one Close.
func (g *Gate) Open() { g.inside.Add(-closed) }

// Closed reports whether calls are refused.
func (g *Gate) Closed() bool { return g.inside.Load() >= closed }

// Empty reports whether no call is inside. The gate is closed.
func (g *Gate) Empty() bool { return g.inside.Load()%closed == 0 }
