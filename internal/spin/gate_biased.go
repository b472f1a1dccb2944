//go:build !race && linux && amd64

package spin

import (
	"sync"
	"sync/atomic"
)

// Gate counts the calls of a resource, so that its owner can wait for them before it closes the
// resource. A call begins with Enter and ends with Leave. After Close, Enter returns false, and
// Empty reports whether all calls have ended. The zero Gate is open. A Gate must not be copied.
//
// A Gate can be biased towards the goroutine that calls Enter most often, its owner. The owner
// counts its calls with plain stores in its own word, and other goroutines in an atomic word.
// Close withdraws the bias and makes every processor execute a memory barrier. Then either the
// owner has seen the withdrawal or Close sees the owner's count.
type Gate struct {
	bias          atomic.Pointer[bias]
	unbiasedCount atomic.Int64   // calls of other goroutines, plus closedUnit for each Close
	lastUnbiased  atomic.Uintptr // goroutine of the last call in unbiasedCount
	repeatCount   atomic.Int32   // consecutive calls by lastUnbiased

	biasMu     sync.Mutex // held while the bias changes; its holder acquires no other lock
	latestBias *bias      // guarded by biasMu; remains after its withdrawal
}

// Pass is the result of Gate.Enter, for Gate.Leave. Its bias is nil if unbiasedCount has the call.
type Pass struct{ bias *bias }

const (
	closedUnit         = 1 << 32 // larger than any number of simultaneous calls
	gateOwnerThreshold = 1000    // consecutive calls after which a goroutine becomes the owner
)

// Enter begins a call, or returns false if the gate is closed. The same goroutine must call Leave.
// Calls can be nested.
func (g *Gate) Enter() (Pass, bool) {
	if p := g.EnterAs(Self()); p != (Pass{}) {
		return p, true
	}
	return g.enterUnbiased()
}

// EnterAs is a faster Enter that Go can inline. Unless me, the running goroutine, is the owner, it
// returns the zero Pass, and the caller must call Enter.
func (g *Gate) EnterAs(me Goroutine) Pass {
	b := g.bias.Load()
	if b == nil || b.owner != uintptr(me) {
		return Pass{}
	}
	b.busy++
	if g.bias.Load() != b { // The bias was withdrawn meanwhile.
		b.busy--
		return Pass{}
	}
	return Pass{b}
}

// Goroutine identifies a running goroutine.
type Goroutine uintptr

// Self returns the running goroutine.
func Self() Goroutine { return Goroutine(goroutine()) }

// Leave ends a call.
func (g *Gate) Leave(p Pass) {
	if p.bias != nil {
		p.bias.busy--
		return
	}
	g.unbiasedCount.Add(-1)
}

// enterUnbiased is Enter for a goroutine that is not the owner. It makes the goroutine the owner
// after gateOwnerThreshold consecutive calls.
func (g *Gate) enterUnbiased() (Pass, bool) {
	if g.unbiasedCount.Add(1) >= closedUnit {
		g.unbiasedCount.Add(-1)
		return Pass{}, false
	}
	if me := goroutine(); me != g.lastUnbiased.Load() {
		g.lastUnbiased.Store(me)
		g.repeatCount.Store(0)
	} else if g.repeatCount.Add(1) == gateOwnerThreshold {
		g.repeatCount.Store(0)
		g.setOwner(me)
	}
	return Pass{}, true
}

// setOwner biases the gate towards a goroutine. It does nothing if the gate is closed or another
// goroutine changes the bias. If the owner so far is in a call, it remains the owner.
func (g *Gate) setOwner(owner uintptr) {
	if !canBarrier() || !g.biasMu.TryLock() {
		return
	}
	defer g.biasMu.Unlock()
	if g.Closed() {
		return
	}
	g.withdraw()
	isIdle := g.latestBias == nil || atomic.LoadUint32(&g.latestBias.busy) == 0
	if isIdle {
		g.latestBias = &bias{owner: owner}
	}
	g.bias.Store(g.latestBias)
}

// withdraw ends the bias. Then this goroutine can read the owner's calls from latestBias.busy. The
// caller must hold biasMu.
func (g *Gate) withdraw() {
	if g.bias.Load() != nil {
		g.bias.Store(nil)
		barrier()
	}
}

// Close closes the gate, without waiting for calls. It may be called several times. The gate opens
// when Open has been called as often.
func (g *Gate) Close() {
	g.unbiasedCount.Add(closedUnit)
	g.biasMu.Lock()
	defer g.biasMu.Unlock()
	g.withdraw()
}

// Open undoes one Close.
func (g *Gate) Open() { g.unbiasedCount.Add(-closedUnit) }

// Closed reports whether the gate is closed.
func (g *Gate) Closed() bool { return g.unbiasedCount.Load() >= closedUnit }

// Empty reports whether all calls have ended. The gate must be closed.
func (g *Gate) Empty() bool {
	g.biasMu.Lock()
	defer g.biasMu.Unlock()
	return g.unbiasedCount.Load()%closedUnit == 0 &&
		(g.latestBias == nil || atomic.LoadUint32(&g.latestBias.busy) == 0)
}
