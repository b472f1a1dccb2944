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
// After Close, Enter returns false. When Empty returns true, the memory can be unmapped. The zero
// Gate is open. A Gate must not be copied.
//
// The goroutine that makes most calls becomes the owner of a bias. It counts its calls in the bias
// with plain instead of atomic instructions. Closing the gate ends the bias:
//
//	owner, in Enter                  closing goroutine
//	increments bias.busy             sets Gate.bias to nil
//	checks that Gate.bias is set     makes every processor execute a memory barrier
//	                                 waits until bias.busy is 0
//
// If the check precedes the barrier, the increment is visible after the barrier. Otherwise, the
// check finds nil, and the owner decrements busy again.
type Gate struct {
	bias          atomic.Pointer[bias] // nil if the gate has no bias
	unbiasedCount atomic.Int64         // calls of other goroutines, plus closedUnit for each Close
	lastUnbiased  atomic.Uintptr       // goroutine of the last call that unbiasedCount counted
	repeatCount   atomic.Int32         // consecutive calls by lastUnbiased, after the first

	biasMu     sync.Mutex // held while the bias changes
	latestBias *bias      // may still count calls after bias is nil; guarded by biasMu
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
	bias *bias // counts the call; nil if Gate.unbiasedCount counts it
}

// Goroutine identifies a running goroutine.
type Goroutine uintptr

// Self returns the running goroutine.
func Self() Goroutine { return Goroutine(goroutine()) }

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

// EnterAs is a faster, inlinable Enter for the owner. It returns the zero Pass if the running
// goroutine, me, is not the owner. The caller must then call Enter.
func (g *Gate) EnterAs(me Goroutine) Pass {
	b := g.bias.Load()
	if b == nil || b.owner != uintptr(me) {
		return Pass{}
	}

	b.busy++
	if g.bias.Load() != b { // Another goroutine has just ended the bias.
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

// enterUnbiased begins a call of a goroutine that is not the owner. It makes the goroutine the
// owner after gateOwnerThreshold repetitions without calls by others.
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

// setOwner makes a goroutine the owner unless the gate is closed, the bias is being changed, or the
// current owner is in a call.
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

	g.bias.Store(g.latestBias)
}

// endBias ends the bias. Afterwards, the owner begins no call in it, and latestBias.busy counts all
// earlier ones that still run. The caller must hold biasMu.
func (g *Gate) endBias() {
	if g.bias.Load() != nil {
		g.bias.Store(nil)
		barrier()
	}
}

// isOwnerIdle reports whether the latest owner, if any, has left all its calls. The caller must
// hold biasMu and have called endBias.
func (g *Gate) isOwnerIdle() bool {
	return g.latestBias == nil || atomic.LoadUint32(&g.latestBias.busy) == 0
}

// Close closes the gate without waiting for calls. Each Close needs an Open to undo it.
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
