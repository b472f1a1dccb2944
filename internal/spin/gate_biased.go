//go:build !race && linux && amd64

package spin

import (
	"sync"
	"sync/atomic"
)

// Gate counts the running calls that use a resource, such as mapped memory. A call uses the Gate as
// follows:
//
//	pass, isOpen := gate.Enter()
//	if isOpen {
//		... // access the memory
//		gate.Leave(pass)
//	}
//
// To unmap the memory, another goroutine calls Close, after which Enter returns false. It then
// waits until Empty reports that all calls have ended. The zero Gate is open. A Gate must not be
// copied.
//
// Usually, one goroutine makes most calls. Such a goroutine, the owner, gets a bias, which makes
// its calls faster: it counts them by plain stores to bias.busy. Other goroutines count their calls
// in an atomic variable. Suppose that the owner begins a call while another goroutine closes the
// gate:
//
//	owner                            other goroutine
//	increments busy                  ends the bias: sets Gate.bias to nil
//	checks that Gate.bias is set     makes every processor execute a memory barrier
//	                                 waits until busy is 0
//
// A processor may delay the owner's store to busy, but not beyond the barrier. So if the owner has
// checked Gate.bias before the barrier, the other goroutine sees the call in busy. If the owner
// checks it after the barrier, it sees that the bias has ended, and decrements busy again.
type Gate struct {
	bias          atomic.Pointer[bias] // nil if the gate has no bias
	unbiasedCount atomic.Int64         // calls not counted by a bias, plus closedUnit for each Close
	lastUnbiased  atomic.Uintptr       // goroutine of the last call in unbiasedCount
	repeatCount   atomic.Int32         // consecutive calls by lastUnbiased

	biasMu     sync.Mutex // held while the bias changes; its holder acquires no other lock
	latestBias *bias      // stays after the bias has ended; guarded by biasMu
}

const (
	// closedUnit marks a closed gate in unbiasedCount. It is larger than any number of simultaneous
	// calls.
	closedUnit = 1 << 32
	// gateOwnerThreshold is the number of times that a goroutine must repeat a call to become the
	// owner. It is high, because ending a bias takes a few microseconds.
	gateOwnerThreshold = 1000
)

// Pass is a result of Gate.Enter. The caller passes it to Gate.Leave.
type Pass struct {
	bias *bias // bias that counts the call, or nil if unbiasedCount does
}

// Goroutine identifies a running goroutine.
type Goroutine uintptr

// Self returns the running goroutine.
func Self() Goroutine { return Goroutine(goroutine()) }

// Enter begins a call, or returns false if the gate is closed. The same goroutine must call Leave.
// A goroutine can begin a call during another one.
func (g *Gate) Enter() (Pass, bool) {
	if p := g.EnterAs(Self()); p != (Pass{}) {
		return p, true
	}

	return g.enterUnbiased()
}

// EnterAs is a faster Enter for the owner, which Go's compiler can inline. me must be the running
// goroutine. If me is not the owner, EnterAs returns the zero Pass, and the caller must call Enter.
func (g *Gate) EnterAs(me Goroutine) Pass {
	b := g.bias.Load()
	if b == nil || b.owner != uintptr(me) {
		return Pass{}
	}

	b.busy++
	if g.bias.Load() != b { // Another goroutine has ended the bias meanwhile.
		b.busy--
		return Pass{}
	}

	return Pass{bias: b}
}

// Leave ends a call. It also works after the gate was closed or the bias has ended.
func (g *Gate) Leave(p Pass) {
	if p.bias != nil {
		p.bias.busy--
		return
	}

	g.unbiasedCount.Add(-1)
}

// enterUnbiased is Enter for a goroutine that is not the owner. It makes the goroutine the owner
// after gateOwnerThreshold repetitions without a call of another goroutine.
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

// setOwner gives a bias to a goroutine. It does nothing if the gate is closed, or if another
// goroutine is changing the bias. If the current owner is in a call, it stays the owner.
func (g *Gate) setOwner(owner uintptr) {
	if !canBarrier() || !g.biasMu.TryLock() {
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

// endBias ends the bias. Afterwards, latestBias.busy counts all running calls of the owner, and no
// more are added. The caller must hold biasMu.
func (g *Gate) endBias() {
	if g.bias.Load() != nil {
		g.bias.Store(nil)
		barrier()
	}
}

// isOwnerIdle reports whether the latest owner is in no call, or there has been no owner. The
// caller must hold biasMu, after endBias.
func (g *Gate) isOwnerIdle() bool {
	return g.latestBias == nil || atomic.LoadUint32(&g.latestBias.busy) == 0
}

// Close closes the gate, without waiting for calls. It may be called several times. The gate opens
// when Open has been called as often.
func (g *Gate) Close() {
	g.unbiasedCount.Add(closedUnit)
	g.biasMu.Lock()
	defer g.biasMu.Unlock()
	g.endBias()
}

// Open undoes one Close.
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
