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
// A goroutine that acquires the lock lockOwnerThreshold times in a row becomes its owner, and the
// lock is biased. The owner acquires it by a plain store to busy. Any other goroutine ends the
// bias: it sets held by a compare-and-swap, clears bias, makes every processor that runs this
// process execute a memory barrier (membarrier(2)), and waits until busy is 0. The owner sets busy
// before it checks bias, so after the barrier either the owner has seen that bias is nil, or the
// other goroutine sees busy. A TryLock that sees busy restores bias before it clears held. Each
// bias is a new variable, so that a former owner cannot disturb the next one.
//
// Waiting goroutines yield and then sleep briefly, so Unlock does not wake them. Without
// membarrier(2), the lock never has a bias.
type Lock struct {
	bias        atomic.Pointer[bias]
	heldBias    *bias   // bias with which the holder has the lock; nil if the holder set held
	held        uint32  // 1 if a goroutine holds the lock without a bias, or waits for the owner
	repeatCount uint32  // consecutive acquisitions by lastHolder; guarded by held
	lastHolder  uintptr // goroutine that set held last; guarded by held
}

// bias is the bias of a Lock or a Gate towards a goroutine.
type bias struct {
	owner uintptr         // the goroutine
	busy  uint32          // number of the owner's calls in the Gate; for a Lock, 0 or 1
	_     [LineBytes]byte // keeps other variables out of the cache line of busy
}

const (
	// lockOwnerThreshold is high, because ending a bias takes a few microseconds.
	lockOwnerThreshold = 200
	// A waiting goroutine yields yieldRounds times and then sleeps. After every sleepsPerStep
	// sleeps, the length of a sleep doubles, up to maxDoublings times.
	yieldRounds   = 100
	firstSleep    = 50 * time.Microsecond
	sleepsPerStep = 20
	maxDoublings  = 4
)

// goroutine returns a value that identifies the running goroutine.
func goroutine() uintptr

// Lock acquires the lock.
//
// Lock and Unlock write busy with plain stores: Go's compiler keeps stores in program order, and
// moves no load past a later store, an atomic load or a call. amd64 makes stores visible in that
// order, after all earlier loads.
func (l *Lock) Lock() {
	if b := l.bias.Load(); b != nil {
		if b.owner == goroutine() && l.lockBiased(b) {
			return
		}
	}
	l.lockUnbiased()
}

// TryLock acquires the lock if it is free, without waiting. It may fail while another goroutine is
// trying to acquire the lock.
func (l *Lock) TryLock() bool {
	if b := l.bias.Load(); b != nil && b.owner == goroutine() {
		if b.busy != 0 {
			return false
		}
		if l.lockBiased(b) {
			return true
		}
	}
	if !atomic.CompareAndSwapUint32(&l.held, 0, 1) {
		return false
	}
	b := l.withdraw()
	isFree := b == nil || atomic.LoadUint32(&b.busy) == 0
	if isFree {
		l.heldBias = nil
		return true
	}
	l.bias.Store(b) // The owner keeps the lock and the bias.
	StoreRelease32(&l.held, 0)
	return false
}

// lockBiased acquires the lock with a bias, whose owner calls it. It returns false if another
// goroutine ends the bias.
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

// Unlock releases the lock, which the caller must hold.
func (l *Lock) Unlock() {
	if b := l.heldBias; b != nil {
		b.busy = 0
		return
	}
	l.unlockUnbiased()
}

// lockUnbiased acquires the lock without a bias: it sets held, ends the bias and waits for the
// owner.
func (l *Lock) lockUnbiased() {
	for round := 0; !atomic.CompareAndSwapUint32(&l.held, 0, 1); round++ {
		pause(round)
	}
	if b := l.withdraw(); b != nil {
		for round := 0; atomic.LoadUint32(&b.busy) != 0; round++ {
			pause(round)
		}
	}
	if l.heldBias != nil {
		l.heldBias = nil
	}
}

// withdraw ends the bias and returns it, or nil if there was none. The caller must have set held.
func (l *Lock) withdraw() *bias {
	b := l.bias.Load()
	if b != nil {
		l.bias.Store(nil)
		barrier()
	}
	return b
}

// unlockUnbiased clears held. Before, it creates a bias towards this goroutine if it has acquired
// the lock often enough.
func (l *Lock) unlockUnbiased() {
	if me := goroutine(); me != l.lastHolder {
		l.lastHolder, l.repeatCount = me, 0
	} else if l.repeatCount++; l.repeatCount == lockOwnerThreshold && canBarrier() {
		l.repeatCount = 0
		l.bias.Store(&bias{owner: me})
	}
	StoreRelease32(&l.held, 0)
}

// pause yields in early rounds, and sleeps in later rounds.
func pause(round int) {
	if round < yieldRounds {
		runtime.Gosched()
		return
	}
	time.Sleep(firstSleep << min((round-yieldRounds)/sleepsPerStep, maxDoublings))
}

// The number of the system call membarrier, and its commands MEMBARRIER_CMD_PRIVATE_EXPEDITED and
// MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED.
const (
	membarrierCall      = 324
	membarrierExpedited = 1 << 3
	membarrierRegister  = 1 << 4
)

// canBarrier registers this process for barrier, and reports whether the kernel supports that.
var canBarrier = sync.OnceValue(func() bool {
	_, _, errno := syscall.RawSyscall(membarrierCall, membarrierRegister, 0, 0)
	return errno == 0
})

// barrier makes every running thread of this process execute a full memory barrier. It panics on
// errors, which would break mutual exclusion.
func barrier() {
	_, _, errno := syscall.RawSyscall(membarrierCall, membarrierExpedited, 0, 0)
	if errno != 0 {
		panic("spin: membarrier failed: " + errno.Error())
	}
}
