//go:build race || !(linux && amd64)

package spin

import "sync/atomic"

// Gate counts the calls between Enter and Leave. After Close, Enter returns false, and Empty
// reports whether all calls have ended. The zero Gate is open.
type Gate struct {
	calls atomic.Int64 // number of running calls, plus closedUnit for each Close
}

// Pass is a result of Gate.Enter. The caller passes it to Gate.Leave.
type Pass struct{}

// closedUnit marks a closed gate. It is larger than any number of simultaneous calls.
const closedUnit = 1 << 32

// Enter begins a call, or returns false if the gate is closed. Leave ends it.
func (g *Gate) Enter() (Pass, bool) {
	if g.calls.Add(1) >= closedUnit {
		g.calls.Add(-1)
		return Pass{}, false
	}

	return Pass{}, true
}

// EnterAs returns the zero Pass, because this Gate has no bias.
func (g *Gate) EnterAs(Goroutine) Pass { return Pass{} }

// Goroutine identifies a running goroutine.
type Goroutine struct{}

// Self returns the running goroutine.
func Self() Goroutine { return Goroutine{} }

// Leave ends a call.
func (g *Gate) Leave(Pass) { g.calls.Add(-1) }

// Close closes the gate. Each Close needs an Open.
func (g *Gate) Close() { g.calls.Add(closedUnit) }

// Open undoes one Close.
func (g *Gate) Open() { g.calls.Add(-closedUnit) }

// Closed reports whether the gate is closed.
func (g *Gate) Closed() bool { return g.calls.Load() >= closedUnit }

// Empty reports whether all calls have ended. Call it only after Close.
func (g *Gate) Empty() bool { return g.calls.Load()%closedUnit == 0 }
