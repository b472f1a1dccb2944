//go:build !race && linux && amd64

package spin

import (
	"runtime"
	"sync/atomic"
	"time"
)

// Lock is a mutex for one frequent and several rare users. The zero Lock is unlocked. A Lock must
// not be copied, and its holder must not acquire it again.
//
// A goroutine that acquires the lock many times in a row becomes the owner of a bias: it acquires
// the lock without atomic instructions until another goroutine acquires it. See bias.
type Lock struct {
	currentBias atomic.Pointer[bias] // nil if the lock has no owner; stores are guarded by held
	heldBias    *bias                // bias of the last holder, or nil
	held        uint32               // 1 while held without a bias, or while a bias ends
	repeatCount uint32               // number of repetitions by lastHolder; guarded by held
	lastHolder  uintptr              // last holder without a bias; guarded by held
}

// Lock acquires the lock.
func (l *Lock) Lock() {
	if b := l.currentBias.Load(); b != nil {
		if b.owner == goroutine() && l.lockBiased(b) {
			return
		}
	}

	l.lockUnbiased()
}

// lockBiased acquires the lock for the owner of b, the running goroutine. It returns false if
// another goroutine has ended the bias.
func (l *Lock) lockBiased(b *bias) bool {
	b.busy = 1 // see bias
	if l.currentBias.Load() != b {
		b.busy = 0
		return false
	}

	if l.heldBias != b { // A load is cheaper than a store.
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

	if l.heldBias != nil {
		l.heldBias = nil
	}
}

// endBias ends and returns the bias, or returns nil if there is none. The owner may hold the lock
// until busy is 0. The caller must have set held.
func (l *Lock) endBias() *bias {
	b := l.currentBias.Load()
	if b != nil {
		l.currentBias.Store(nil)
		barrier()
	}

	return b
}

// pause waits between polls. It yields in the first rounds. Afterwards, it sleeps for increasing
// times.
func pause(round int) {
	const (
		yieldRounds       = 100
		firstSleep        = 50 * time.Microsecond
		sleepsPerDoubling = 20
		maxDoublings      = 4
	)
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
	if b := l.currentBias.Load(); b != nil && b.owner == goroutine() {
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

	l.currentBias.Store(b) // The owner holds the lock.
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

// unlockUnbiased releases a lock acquired without a bias. The holder may become the owner.
func (l *Lock) unlockUnbiased() {
	me := goroutine()
	if me != l.lastHolder {
		l.lastHolder = me
		l.repeatCount = 0
	} else {
		l.repeatCount++
		if l.repeatCount == lockOwnerThreshold && enableBarrier() {
			l.repeatCount = 0
			// A new bias, because the former owner may still clear busy of the old bias.
			l.currentBias.Store(&bias{owner: me})
		}
	}

	StoreRelease32(&l.held, 0)
}
