//go:build !race && linux && amd64

package spin

import (
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Lock is a mutual exclusion lock that one goroutine acquires often and others acquire rarely. The
// zero Lock is unlocked. A Lock must not be copied, and its holder must not acquire it again.
//
// A goroutine that acquires the lock many times in a row, the owner, gets a bias. From then on, the
// owner acquires the lock by a plain store, which is faster than an atomic instruction. Suppose
// that the owner acquires the lock while another goroutine needs it:
//
//	owner                            other goroutine
//	sets bias.busy to 1              sets held to 1 by a compare-and-swap
//	checks that Lock.bias is set     ends the bias: sets Lock.bias to nil
//	                                 makes every processor execute a memory barrier
//	                                 waits until bias.busy is 0
//
// A processor may delay the owner's store to busy, but not beyond the barrier. So if the owner has
// checked Lock.bias before the barrier, the other goroutine sees busy, and waits. If the owner
// checks it after the barrier, it sees that the bias has ended, and sets busy to 0 again.
//
// Each bias is a new variable, so that a former owner cannot disturb the next one. Waiting
// goroutines yield and then sleep briefly, so Unlock does not wake them. The barrier is the system
// call membarrier(2). Without it, the lock never has a bias.
type Lock struct {
	bias        atomic.Pointer[bias] // nil if the lock has no bias
	heldBias    *bias                // bias with which the holder has the lock; nil if it set held
	held        uint32               // 1 if a goroutine holds the lock without a bias or ends a bias
	repeatCount uint32               // consecutive acquisitions by lastHolder; guarded by held
	lastHolder  uintptr              // goroutine that set held last; guarded by held
}

// bias gives its owner, a goroutine, faster access to a Lock or a Gate.
type bias struct {
	owner uintptr         // the goroutine
	busy  uint32          // number of the owner's calls in the Gate; for a Lock, 0 or 1
	_     [LineBytes]byte // keeps other variables out of the cache line of busy
}

// goroutine returns a value that identifies the running goroutine. It is written in assembler.
func goroutine() uintptr

// Lock acquires the lock.
//
// Lock and Unlock write busy with plain stores, which are sufficient for two reasons. Go's compiler
// keeps stores in program order, and moves no load past a later store, an atomic load or a call.
// amd64 makes stores visible in program order, after all earlier loads.
func (l *Lock) Lock() {
	if b := l.bias.Load(); b != nil {
		if b.owner == goroutine() && l.lockBiased(b) {
			return
		}
	}

	l.lockUnbiased()
}

// lockBiased acquires the lock for the owner of b, which must be the running goroutine. It returns
// false if another goroutine has ended the bias.
func (l *Lock) lockBiased(b *bias) bool {
	b.busy = 1
	if l.bias.Load() != b {
		b.busy = 0
		return false
	}

	if l.heldBias != b { // Usually they are equal, and no store is necessary.
		l.heldBias = b
	}

	return true
}

// lockUnbiased acquires the lock without a bias: it sets held, ends the bias and waits for the
// owner.
func (l *Lock) lockUnbiased() {
	for round := 0; !atomic.CompareAndSwapUint32(&l.held, 0, 1); round++ {
		pause(round)
	}

	if b := l.endBias(); b != nil {
		for round := 0; atomic.LoadUint32(&b.busy) != 0; round++ {
			pause(round)
		}
	}

	if l.heldBias != nil { // Usually it is nil, and no store is necessary.
		l.heldBias = nil
	}
}

// endBias ends the bias and returns it, or nil if there was none. The caller must have set held.
// After endBias, the caller sees whether the owner holds the lock.
func (l *Lock) endBias() *bias {
	b := l.bias.Load()
	if b != nil {
		l.bias.Store(nil)
		barrier()
	}

	return b
}

const (
	// yieldRounds is how often a waiting goroutine yields before it sleeps.
	yieldRounds = 100
	firstSleep  = 50 * time.Microsecond // length of the first sleep
	// The length of a sleep doubles after every sleepsPerStep sleeps, up to maxDoublings times.
	sleepsPerStep = 20
	maxDoublings  = 4
)

// pause waits before a goroutine tries again to acquire the lock. It yields in early rounds, and
// sleeps in later rounds.
func pause(round int) {
	if round < yieldRounds {
		runtime.Gosched()
		return
	}

	doublings := min((round-yieldRounds)/sleepsPerStep, maxDoublings)
	time.Sleep(firstSleep << doublings)
}

// TryLock acquires the lock if it is free, without waiting. It may fail while another goroutine is
// trying to acquire the lock.
func (l *Lock) TryLock() bool {
	if b := l.bias.Load(); b != nil && b.owner == goroutine() {
		if b.busy != 0 {
			return false // This goroutine already holds the lock.
		}

		if l.lockBiased(b) {
			return true
		}
	}

	hasSetHeld := atomic.CompareAndSwapUint32(&l.held, 0, 1)
	if !hasSetHeld {
		return false
	}

	b := l.endBias()
	isFree := b == nil || atomic.LoadUint32(&b.busy) == 0
	if isFree {
		l.heldBias = nil
		return true
	}

	l.bias.Store(b) // The owner keeps the lock and the bias.
	StoreRelease32(&l.held, 0)
	return false
}

// Unlock releases the lock, which the caller must hold.
func (l *Lock) Unlock() {
	if b := l.heldBias; b != nil {
		b.busy = 0
		return
	}

	l.unlockUnbiased()
}

// lockOwnerThreshold is the number of times in a row that a goroutine must acquire the lock again
// to become the owner. It is high, because ending a bias takes a few microseconds.
const lockOwnerThreshold = 200

// unlockUnbiased releases the lock of a goroutine that has set held. If the goroutine has acquired
// the lock often enough, it first becomes the owner.
func (l *Lock) unlockUnbiased() {
	me := goroutine()
	if me != l.lastHolder {
		l.lastHolder = me
		l.repeatCount = 0
	} else {
		l.repeatCount++
		if l.repeatCount == lockOwnerThreshold && canBarrier() {
			l.repeatCount = 0
			l.bias.Store(&bias{owner: me})
		}
	}

	StoreRelease32(&l.held, 0)
}

const (
	membarrierCall      = 324    // number of the system call membarrier
	membarrierExpedited = 1 << 3 // MEMBARRIER_CMD_PRIVATE_EXPEDITED
	membarrierRegister  = 1 << 4 // MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED
)

// canBarrier registers this process for barrier, and reports whether the kernel supports barrier.
// Later calls return the result of the first.
var canBarrier = sync.OnceValue(func() bool {
	_, _, errno := syscall.RawSyscall(membarrierCall, membarrierRegister, 0, 0)
	return errno == 0
})

// barrier makes every running thread of this process execute a full memory barrier. It panics after
// an error, because mutual exclusion would not work without the barrier. After canBarrier has
// returned true, no error is expected.
func barrier() {
	_, _, errno := syscall.RawSyscall(membarrierCall, membarrierExpedited, 0, 0)
	if errno != 0 {
		panic("spin: membarrier failed: " + errno.Error())
	}
}
