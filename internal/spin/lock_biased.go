//go:build !race && linux && amd64

package spin

import (
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Lock is a mutex for one frequent and several rare users. The zero Lock is unlocked. A Lock must
// not be copied, and its holder must not acquire it again.
//
// A goroutine that acquires the lock many times in a row becomes the owner of a bias: from then on,
// it acquires the lock with a plain instead of an atomic instruction. When another goroutine needs
// the lock, it ends the bias:
//
//	owner                            other goroutine
//	sets bias.busy to 1              sets held to 1 by a compare-and-swap
//	checks that Lock.bias is set     sets Lock.bias to nil
//	                                 makes every processor execute a memory barrier
//	                                 waits until bias.busy is 0
//
// If the owner's check precedes the barrier, the 1 in busy is visible after the barrier. Otherwise,
// the check finds nil, and the owner clears busy and competes for held.
//
// Each owner gets a new bias, so a former owner cannot clear the busy of the next one. On kernels
// without membarrier(2), no goroutine gets a bias.
type Lock struct {
	bias        atomic.Pointer[bias] // nil if the lock has no bias
	heldBias    *bias                // bias of the current or last holder; nil if it set held
	held        uint32               // 1 while a goroutine holds the lock without a bias or ends one
	repeatCount uint32               // consecutive acquisitions by lastHolder; guarded by held
	lastHolder  uintptr              // goroutine that set held last; guarded by held
}

// bias gives its owner, a goroutine, faster access to a Lock or a Gate.
type bias struct {
	owner uintptr         // the goroutine
	busy  uint32          // the owner's nested calls in a Gate, or 1 while it holds a Lock
	_     [LineBytes]byte // keeps other variables out of the cache line of busy
}

// goroutine identifies the running goroutine. It is written in assembly.
func goroutine() uintptr

// Lock acquires the lock.
//
// Plain stores to busy suffice, in Lock and in Unlock. Go's compiler keeps stores in program order,
// and moves no load past a later store, an atomic load or a call. amd64 makes a store visible after
// all earlier stores and loads.
func (l *Lock) Lock() {
	if b := l.bias.Load(); b != nil {
		if b.owner == goroutine() && l.lockBiased(b) {
			return
		}
	}

	l.lockUnbiased()
}

// lockBiased acquires the lock for the owner of b, the running goroutine. It returns false if
// another goroutine has ended the bias.
func (l *Lock) lockBiased(b *bias) bool {
	b.busy = 1
	if l.bias.Load() != b {
		b.busy = 0
		return false
	}

	if l.heldBias != b { // avoids a store if the owner held the lock last
		l.heldBias = b
	}

	return true
}

// lockUnbiased acquires the lock for a goroutine that is not the owner.
func (l *Lock) lockUnbiased() {
	for round := 0; !atomic.CompareAndSwapUint32(&l.held, 0, 1); round++ {
		pause(round)
	}

	if b := l.endBias(); b != nil {
		for round := 0; atomic.LoadUint32(&b.busy) != 0; round++ {
			pause(round)
		}
	}

	if l.heldBias != nil { // avoids a store if the last holder had no bias
		l.heldBias = nil
	}
}

// endBias ends and returns the bias, or returns nil if there is none. Until busy of the bias is 0,
// the owner may hold the lock. The caller must have set held.
func (l *Lock) endBias() *bias {
	b := l.bias.Load()
	if b != nil {
		l.bias.Store(nil)
		barrier()
	}

	return b
}

// A waiting goroutine polls: it yields 100 times, then sleeps for 50 us to 800 us between polls.
const (
	yieldRounds       = 100
	firstSleep        = 50 * time.Microsecond
	sleepsPerDoubling = 20
	maxDoublings      = 4
)

// pause waits before the next attempt to acquire the lock.
func pause(round int) {
	if round < yieldRounds {
		runtime.Gosched()
		return
	}

	sleepsBefore := round - yieldRounds
	doublings := min(sleepsBefore/sleepsPerDoubling, maxDoublings)
	time.Sleep(firstSleep << doublings)
}

// TryLock acquires the lock if it is free. It may fail while another goroutine is trying to acquire
// the lock.
func (l *Lock) TryLock() bool {
	if b := l.bias.Load(); b != nil && b.owner == goroutine() {
		if b.busy != 0 {
			return false // This goroutine already holds the lock.
		}

		if l.lockBiased(b) {
			return true
		}
	}

	if !atomic.CompareAndSwapUint32(&l.held, 0, 1) {
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

// lockOwnerThreshold is the repeatCount at which a goroutine becomes the owner. It is high because
// ending a bias takes a few microseconds.
const lockOwnerThreshold = 200

// unlockUnbiased releases a lock acquired by setting held. The holder may become the owner.
func (l *Lock) unlockUnbiased() {
	me := goroutine()
	if me != l.lastHolder {
		l.lastHolder = me
		l.repeatCount = 0
	} else {
		l.repeatCount++
		if l.repeatCount == lockOwnerThreshold && enableBarrier() {
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

// enableBarrier registers this process for barrier. It returns false if the kernel does not support
// barrier.
var enableBarrier = sync.OnceValue(func() bool {
	_, _, errno := syscall.RawSyscall(membarrierCall, membarrierRegister, 0, 0)
	return errno == 0
})

// barrier makes every running thread of this process execute a full memory barrier. enableBarrier
// must have returned true.
func barrier() {
	_, _, errno := syscall.RawSyscall(membarrierCall, membarrierExpedited, 0, 0)
	if errno != 0 { // Without the barrier, two goroutines could hold the lock.
		panic("spin: membarrier failed: " + errno.Error())
	}
}
