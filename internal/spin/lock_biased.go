//go:build !race && linux && amd64

package spin

import (
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Lock is a mutual exclusion lock for critical sections that one goroutine enters often and others
// enter rarely. During a long critical section, waiters use little CPU time. The zero Lock is
// unlocked. A Lock must not be copied after first use, and its holder must not acquire it again.
//
// A goroutine that has acquired the lock biasAfter times in a row becomes its owner: the lock is
// then biased. The owner acquires the lock by setting busy with a plain store, which is faster than
// a locked instruction. Without a bias, the lock is acquired by a compare-and-swap of held.
//
// Any other goroutine that acquires the lock ends the bias. It sets held, withdraws the bias, makes
// every processor that runs a thread of this process execute a memory barrier (membarrier(2)), and
// waits until the owner is not busy. The owner sets busy before it checks the bias. After the
// barrier, either the owner has therefore seen the withdrawal, or the other goroutine sees busy. A
// TryLock that sees busy restores the bias before it clears held. Each bias is a new record, so
// that a former owner cannot interfere with the next owner.
//
// Waiters yield and then sleep briefly, so that Unlock need not wake them. If membarrier(2) is not
// available, the lock never has a bias.
type Lock struct {
	bias    atomic.Pointer[bias]
	current *bias   // bias through which the holder acquired the lock; nil if it acquired held
	held    uint32  // 1 if a goroutine holds the lock without a bias or is about to acquire it
	streak  uint32  // number of consecutive acquisitions by last; guarded by held
	last    uintptr // goroutine that acquired held last; guarded by held
}

type bias struct {
	owner uintptr
	busy  uint32
	_     [LineBytes]byte
}

const (
	// biasAfter is the number of consecutive acquisitions that make a goroutine the owner. The
	// withdrawal of a bias takes a few microseconds.
	biasAfter = 200
	// A waiter yields yieldRounds times and then sleeps, at first for firstSleep. After every
	// sleepsPerStep sleeps, the length of a sleep doubles, up to maxDoublings times.
	yieldRounds   = 100
	firstSleep    = 50 * time.Microsecond
	sleepsPerStep = 20
	maxDoublings  = 4
)

// goroutine returns an identifier that is unique among the running goroutines.
func goroutine() uintptr

// Lock acquires the lock.
//
// Lock and Unlock write busy with plain stores. That is safe because Go's compiler keeps stores in
// program order and moves no load past a later store, an atomic load or a call, and amd64 makes
// stores visible in that order, after all earlier loads.
func (l *Lock) Lock() {
	if b := l.bias.Load(); b != nil {
		if b.owner == goroutine() && l.lockBiased(b) {
			return
		}
	}
	l.lockHeld()
}

// TryLock acquires the lock if it is free, and reports whether it did. It never waits. It may also
// fail while another goroutine is trying to acquire the lock. If another goroutine owns the bias,
// TryLock takes a microsecond or two.
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
	if b == nil || atomic.LoadUint32(&b.busy) == 0 {
		l.current = nil
		return true
	}
	// The owner holds the lock through the bias. The next goroutine that sets held must see the
	// bias.
	l.bias.Store(b)
	StoreRelease32(&l.held, 0)
	return false
}

// lockBiased acquires the lock for the owner of bias b, unless b is being withdrawn.
func (l *Lock) lockBiased(b *bias) bool {
	b.busy = 1
	if l.bias.Load() != b {
		b.busy = 0
		return false
	}
	if l.current != b {
		l.current = b
	}
	return true
}

// Unlock releases the lock, which the caller must hold.
func (l *Lock) Unlock() {
	if b := l.current; b != nil {
		b.busy = 0
		return
	}
	l.unlockHeld()
}

func (l *Lock) lockHeld() {
	for round := 0; !atomic.CompareAndSwapUint32(&l.held, 0, 1); round++ {
		pause(round)
	}
	if b := l.withdraw(); b != nil {
		for round := 0; atomic.LoadUint32(&b.busy) != 0; round++ {
			pause(round)
		}
	}
	if l.current != nil {
		l.current = nil
	}
}

// withdraw withdraws the bias and returns it, or nil if there is none. The caller must have set
// held. Afterwards, either the owner has seen the withdrawal or this goroutine can see busy.
func (l *Lock) withdraw() *bias {
	b := l.bias.Load()
	if b != nil {
		l.bias.Store(nil)
		barrier()
	}
	return b
}

func (l *Lock) unlockHeld() {
	if g := goroutine(); g != l.last {
		l.last, l.streak = g, 0
	} else if l.streak++; l.streak == biasAfter && canBarrier() {
		l.streak = 0
		l.bias.Store(&bias{owner: g})
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

// Commands of membarrier(2).
const (
	sysMembarrier       = 324
	membarrierExpedited = 1 << 3
	membarrierRegister  = 1 << 4
)

// canBarrier registers this process for membarrier(2) and reports whether barrier works.
var canBarrier = sync.OnceValue(func() bool {
	_, _, errno := syscall.RawSyscall(sysMembarrier, membarrierRegister, 0, 0)
	return errno == 0
})

// barrier makes every running thread of this process execute a full memory barrier, after
// canBarrier has returned true. It panics on errors, because a silent failure would break mutual
// exclusion.
func barrier() {
	_, _, errno := syscall.RawSyscall(sysMembarrier, membarrierExpedited, 0, 0)
	if errno != 0 {
		panic("spin: membarrier failed: " + errno.Error())
	}
}
