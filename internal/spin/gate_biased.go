//go:build !race && linux && amd64

package spin

import (
	"sync"
	"sync/atomic"
)

// Gate counts the running calls that use a resource, such as mapped memory:
//
//	pass, isOpen := gate.Enter()
//	if isOpen {
//		... // access the memory
//		gate.Leave(pass)
//	}
//
// After Close, Enter returns false. Once Empty then returns true, the memory can be unmapped. The
// zero Gate is open. A Gate must not be copied.
//
// If only one goroutine enters often, it becomes the owner of a bias: it enters without atomic
// instructions until another goroutine becomes the owner or closes the gate.
type Gate struct {
	currentBias   atomic.Pointer[bias] // nil if there is no owner
	unbiasedCount atomic.Int64         // running calls without a bias, plus closedUnit for each Close
	lastUnbiased  atomic.Uintptr       // goroutine that last entered without a bias
	repeatCount   atomic.Int32         // number of repetitions by lastUnbiased

	biasMu     sync.Mutex // guards latestBias and stores to currentBias
	latestBias *bias      // may count calls that run after the bias has ended
}

const (
	// closedUnit is larger than any number of simultaneous calls.
	closedUnit = 1 << 32
	// gateOwnerThreshold is the repeatCount at which a goroutine becomes the owner. It is high
	// because ending a bias takes a few microseconds.
	gateOwnerThreshold = 1000
)

// Pass is the result of Gate.Enter that the caller passes to Gate.Leave.
type Pass struct {
	bias *bias // counts the call; nil if the goroutine was not the owner
}

// Enter begins a call, or returns false if the gate is closed. The same goroutine must call Leave.
// A goroutine may enter again before it leaves.
func (g *Gate) Enter() (Pass, bool) {
	pass := g.EnterAs(Self())
	isOwner := pass.bias != nil
	if isOwner {
		return pass, true
	}

	return g.enterUnbiased()
}

// Goroutine identifies a running goroutine.
type Goroutine uintptr

// Self returns the running goroutine.
func Self() Goroutine { return Goroutine(goroutine()) }

// EnterAs is the inlinable part of Enter. me must be the running goroutine. If it is not the owner,
// EnterAs returns the zero Pass, and the caller must call Enter.
func (g *Gate) EnterAs(me Goroutine) Pass {
	b := g.currentBias.Load()
	if b == nil || b.owner != uintptr(me) {
		return Pass{}
	}

	b.busy++                       // see bias
	if g.currentBias.Load() != b { // Another goroutine has just ended the bias.
		b.busy--
		return Pass{}
	}

	return Pass{bias: b}
}

// Leave ends a call. The gate may have been closed meanwhile.
func (g *Gate) Leave(pass Pass) {
	if pass.bias != nil {
		pass.bias.busy--
		return
	}

	g.unbiasedCount.Add(-1)
}

// Close closes the gate and does not wait for calls.
func (g *Gate) Close() {
	g.unbiasedCount.Add(closedUnit)
	g.biasMu.Lock()
	defer g.biasMu.Unlock()
	g.endBias()
}

// Open undoes one Close. The gate is open when every Close has been undone.
func (g *Gate) Open() { g.unbiasedCount.Add(-closedUnit) }

// Closed reports whether the gate is closed.
func (g *Gate) Closed() bool { return g.unbiasedCount.Load() >= closedUnit }

// Empty reports whether all calls have ended. Call it only after Close.
func (g *Gate) Empty() bool {
	g.biasMu.Lock()
	defer g.biasMu.Unlock()
	unbiasedCalls := g.unbiasedCount.Load() % closedUnit
	return unbiasedCalls == 0 && g.isOwnerIdle()
}

// enterUnbiased begins a call of a goroutine that is not the owner but may become it.
func (g *Gate) enterUnbiased() (Pass, bool) {
	count := g.unbiasedCount.Add(1)
	isClosed := count >= closedUnit
	if isClosed {
		g.unbiasedCount.Add(-1)
		return Pass{}, false
	}

	me := goroutine()
	if me != g.lastUnbiased.Load() {
		g.lastUnbiased.Store(me)
		g.repeatCount.Store(0)
	} else if g.repeatCount.Add(1) == gateOwnerThreshold {
		g.repeatCount.Store(0)
		g.setOwner(me)
	}

	return Pass{}, true
}

// setOwner makes a goroutine the owner, unless the current owner is in a call. It does nothing if
// the gate is closed or another goroutine is changing the owner.
func (g *Gate) setOwner(owner uintptr) {
	if !enableBarrier() || !g.biasMu.TryLock() {
		return
	}

	defer g.biasMu.Unlock()
	if g.Closed() {
		return
	}

	g.endBias()
	if g.isOwnerIdle() {
		g.latestBias = &bias{owner: owner}
	}

	// An owner that is in a call gets its bias back.
	g.currentBias.Store(g.latestBias)
}

// endBias ends the bias, if any: latestBias counts no new calls. The caller must hold biasMu.
func (g *Gate) endBias() {
	if g.currentBias.Load() != nil {
		g.currentBias.Store(nil)
		barrier()
	}
}

// isOwnerIdle reports whether latestBias counts no calls. The caller must hold biasMu and have
// called endBias.
func (g *Gate) isOwnerIdle() bool {
	return g.latestBias == nil || atomic.LoadUint32(&g.latestBias.busy) == 0
}
