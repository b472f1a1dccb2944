//go:build !race && linux && amd64

package spin

import (
	"sync"
	"sync/atomic"
)

// Gate counts the calls that are inside a section of code. After Close, Enter refuses calls, and
// Empty reports whether all calls have left. The zero Gate is open. A Gate must not be copied after
// first use.
//
// A Gate is biased like a Lock: its owner is the goroutine that enters most often. The owner counts
// its calls with plain stores in a word that only the owner writes. Other goroutines count their
// calls in an atomic word. Close withdraws the bias and makes every processor execute a memory
// barrier. After the barrier, either the owner has seen the withdrawal or Close sees the owner's
// count.
type Gate struct {
	bias   atomic.Pointer[bias]
	shared atomic.Int64   // number of calls inside without the bias, plus closed for each Close
	last   atomic.Uintptr // goroutine that last entered without the bias
	streak atomic.Int32   // number of consecutive calls of last without the bias

	biasMu sync.Mutex // held while the bias changes; no other lock is acquired meanwhile
	latest *bias      // latest bias, even after its withdrawal; guarded by biasMu
}

// Pass is the result of Gate.Enter, for Gate.Leave.
type Pass struct{ bias *bias }

const (
	closed = 1 << 32
	// moveThreshold is the number of consecutive calls that make another goroutine the owner.
	moveThreshold = 1000
)

// Enter begins a call, or returns false if the gate is closed. The same goroutine must end the call
// with Leave. Calls may be nested.
func (g *Gate) Enter() (Pass, bool) {
	if p := g.EnterAs(Self()); p != (Pass{}) {
		return p, true
	}
	return g.enterShared()
}

// EnterAs begins a call if me, the running goroutine, owns the gate's bias. Otherwise it returns
// the zero Pass, and the caller must call Enter. EnterAs is small enough for Go to inline. As in
// Lock, the compiler keeps the store and the load in order.
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

// Goroutine identifies one of the running goroutines.
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
	} else if g.streak.Add(1) == moveThreshold {
		g.streak.Store(0)
		g.moveTo(me)
	}
	return Pass{}, true
}

// moveTo makes a goroutine the owner, unless the current owner is in a call.
func (g *Gate) moveTo(owner uintptr) {
	if !canBarrier() || !g.biasMu.TryLock() {
		return
	}
	defer g.biasMu.Unlock()
	if g.Closed() {
		return
	}
	if g.withdraw(); g.latest == nil || atomic.LoadUint32(&g.latest.busy) == 0 {
		g.latest = &bias{owner: owner}
	}
	g.bias.Store(g.latest)
}

// withdraw withdraws the bias, after which latest.busy is exact. The caller must hold biasMu.
func (g *Gate) withdraw() {
	if g.bias.Load() != nil {
		g.bias.Store(nil)
		barrier()
	}
}

// Close makes the gate refuse calls until Open has been called once for every Close.
func (g *Gate) Close() {
	g.shared.Add(closed)
	g.biasMu.Lock()
	defer g.biasMu.Unlock()
	g.withdraw()
}

// Open undoes one Close.
func (g *Gate) Open() { g.shared.Add(-closed) }

// Closed reports whether calls are refused.
func (g *Gate) Closed() bool { return g.shared.Load() >= closed }

// Empty reports whether no call is inside. The gate must be closed.
func (g *Gate) Empty() bool {
	g.biasMu.Lock()
	defer g.biasMu.Unlock()
	return g.shared.Load()%closed == 0 && (g.latest == nil || atomic.LoadUint32(&g.latest.busy) == 0)
}
