//go:build !race && linux && amd64

package spin

import (
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Lock is a mutual exclusion lock for critical sections that one goroutine enters repeatedly and
// others rarely, such as those of an allocator or of a stream. They are mostly short. While a long
// one runs (mapping a segment, a call that waits for ranks), waiters use little CPU.
//
// The lock is biased: a goroutine that has acquired it many times in a row acquires it from then on
// by a plain store and a load, without a locked instruction, which would also wait until every
// earlier store has reached the caches.
//
// States: plain (bias is nil; acquired by compare-and-swap of held) and biased (bias names the
// owner, which acquires it by busy). Transitions: plain to biased in an Unlock, by its holder,
// after biasAfter acquisitions in a row by one goroutine; biased to plain by any other goroutine
// that sets held. It withdraws the bias, makes every processor that runs a thread of this process
// execute a memory barrier (membarrier(2)), and waits until the owner is not busy. The owner sets
// busy first and checks the bias then, so after the barrier either the owner has seen the
// withdrawal or the other goroutine sees busy. A TryLock that sees busy restores the bias before it
// clears held. Each bias is a new record, so a late owner cannot interfere with the next one.
//
// Without membarrier the Lock stays plain. Waiters yield, then sleep briefly; none is parked and
// has to be woken. They acquire the lock within some hundred acquisitions by others, since by then
// the lock is biased and held is free. The zero Lock is unlocked. A Lock must not be copied after
// first use, and its holder must not acquire it again.
type Lock struct {
	bias    atomic.Pointer[bias]
	current *bias // bias of the holder; nil if it acquired held
	held    uint32
	streak  uint32  // acquisitions by last in a row; for the holder
	last    uintptr // goroutine that acquired held last; for the holder
}

// bias records that one goroutine owns a Lock.
type bias struct {
	owner uintptr
	busy  uint32
	_     [LineBytes]byte
}

const (
	// biasAfter is the number of acquisitions in a row that make an owner. It outweighs the cost of
	// withdrawing the bias, a few microseconds.
	biasAfter = 200
	// politeRounds is the number of times that a waiter yields before it sleeps. It first sleeps
	// for nap, which doubles after every politeNaps sleeps, up to longest times.
	politeRounds = 100
	nap          = 50 * time.Microsecond
	politeNaps   = 20
	longest      = 4
)

// goroutine returns an identifier that is unique among the running goroutines.
func goroutine() uintptr

// Lock acquires the lock.
//
// busy is written by a plain store, here and in Unlock, which saves two calls into assembly. Go's
// compiler keeps stores in program order, and moves no load past a later store, an atomic load or a
// call; amd64 makes stores visible in that order, after all earlier loads.
func (l *Lock) Lock() {
	if b := l.bias.Load(); b != nil {
		if b.owner == goroutine() && l.lockBiased(b) {
			return
		}
	}
	l.lockHeld()
}

// TryLock acquires the lock if it is free, and reports whether it has. It may also fail while
// another goroutine tries. It never waits, but it withdraws the bias of another goroutine for the
// check, which takes a microsecond or two. If that goroutine holds the lock, its bias is restored.
func (l *Lock) TryLock() bool {
	if b := l.bias.Load(); b != nil && b.owner == goroutine() {
		if b.busy != 0 {
			return false // held by the caller
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
	// Its owner holds the lock by the bias, so the bias must be restored for the next goroutine
	// that sets held.
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

// withdraw withdraws the bias and returns it, or nil if there was none. The caller has set held.
// When withdraw returns, the owner has seen the withdrawal, or busy is visible here.
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
	} else if l.streak++; l.streak == biasAfter && barriers() {
		l.streak = 0
		l.bias.Store(&bias{owner: g})
	}
	StoreRelease32(&l.held, 0)
}

// pause yields, and sleeps in later rounds, since the holder may keep the lock for long.
func pause(round int) {
	if round < politeRounds {
		runtime.Gosched()
		return
	}
	time.Sleep(nap << min((round-politeRounds)/politeNaps, longest))
}

// Commands of membarrier(2).
const (
	sysMembarrier           = 324
	membarrierExpedited     = 1 << 3
	membarrierRegisterForIt = 1 << 4
)

// barriers reports whether barrier works, and registers for it.
var barriers = sync.OnceValue(func() bool {
	_, _, errno := syscall.RawSyscall(sysMembarrier, membarrierRegisterForIt, 0, 0)
	return errno == 0
})

// barrier makes every running thread of this process execute a full memory barrier. It must only be
// called if barriers returned true, since a failure would silently break mutual exclusion.
func barrier() {
	_, _, errno := syscall.RawSyscall(sysMembarrier, membarrierExpedited, 0, 0)
	if errno != 0 {
		panic("spin: membarrier failed: " + errno.Error())
	}
}
