//go:build !race && linux && amd64

package spin

import (
	"sync"
	"sync/atomic"
)

// Gate counts the calls inside a section, so that the goroutine that closes the section can wait
// for them. Any number of goroutines may be inside. Close admits no more calls; Empty then reports
// whether those inside have left. The zero Gate is open.
//
// It is biased like a Lock: the goroutine that enters most often counts itself in a word that only
// it writes, with plain stores. All others count in an atomic word. Close withdraws the bias and
// makes every processor execute a memory barrier: after that either the owner has seen the
// withdrawal or its count is visible.
//
// A Gate must not be copied after first use.
type Gate struct {
	bias   atomic.Pointer[bias]
	shared atomic.Int64 // calls inside that entered without the bias, plus closed per Close
	last   atomic.Uintptr
	streak atomic.Int32 // calls of goroutine last in a row that entered without the bias

	moving sync.Mutex // held while the bias moves; nothing is locked under it
	owned  *bias      // the latest bias, also while it is withdrawn; guarded by moving
}

// Pass is returned by Gate.Enter and passed to Gate.Leave.
type Pass struct{ bias *bias }

const (
	closed = 1 << 32
	// moveAfter is the number of calls in a row after which another goroutine gets the bias. It
	// outweighs the cost of the barrier, a few microseconds.
	moveAfter = 1000
)

// Enter begins a call, which ends with Leave on the same goroutine, or returns false if the gate is
// closed. Calls may be nested.
func (g *Gate) Enter() (Pass, bool) {
	if p := g.EnterAs(Self()); p != (Pass{}) {
		return p, true
	}
	return g.enterShared()
}

// EnterAs begins a call if the running goroutine, which is me, owns the gate's bias. Otherwise it
// returns the zero Pass, and the caller must call Enter. Go inlines EnterAs. As in Lock, the
// compiler keeps the store and the load in order.
func (g *Gate) EnterAs(me Goroutine) Pass {
	b := g.bias.Load()
	if b == nil || b.owner != uintptr(me) {
		return Pass{}
	}
	b.busy++
	if g.bias.Load() != b {
		b.busy--
		return Pass{}
	}
	return Pass{b}
}

// Goroutine identifies a goroutine among those that run.
type Goroutine uintptr

// Self returns the running goroutine.
func Self() Goroutine { return Goroutine(goroutine()) }

// Leave ends a call.
func (g *Gate) Leave(p Pass) {
	if p.bias != nil {
		p.bias.busy--
		return
	}
	g.shared.Add(-1)
}

func (g *Gate) enterShared() (Pass, bool) {
	if g.shared.Add(1) >= closed {
		g.shared.Add(-1)
		return Pass{}, false
	}
	if me := goroutine(); me != g.last.Load() {
		g.last.Store(me)
		g.streak.Store(0)
	} else if g.streak.Add(1) == moveAfter {
		g.streak.Store(0)
		g.moveTo(me)
	}
	return Pass{}, true
}

// moveTo gives the bias to a goroutine, unless the current owner is inside.
func (g *Gate) moveTo(owner uintptr) {
	if !barriers() || !g.moving.TryLock() {
		return
	}
	defer g.moving.Unlock()
	if g.Closed() {
		return
	}
	if g.withdraw(); g.owned == nil || atomic.LoadUint32(&g.owned.busy) == 0 {
		g.owned = &bias{owner: owner}
	}
	g.bias.Store(g.owned)
}

// withdraw withdraws the bias. Afterwards the count of owned is exact. moving is held.
func (g *Gate) withdraw() {
	if g.bias.Load() != nil {
		g.bias.Store(nil)
		barrier()
	}
}

// Close admits no more calls until Open is called as often.
func (g *Gate) Close() {
	g.shared.Add(closed)
	g.moving.Lock()
	defer g.moving.Unlock()
	g.withdraw()
}

// Open undoes one Close.
func (g *Gate) Open() { g.shared.Add(-closed) }

// Closed reports whether calls are refused.
func (g *Gate) Closed() bool { return g.shared.Load() >= closed }

// Empty reports whether no call is inside. The gate is closed.
func (g *Gate) Empty() bool {
	g.moving.Lock()
	defer g.moving.Unlock()
	return g.shared.Load()%closed == 0 && (g.owned == nil || atomic.LoadUint32(&g.owned.busy) == 0)
}
