//go:build !race && linux && amd64

package spin

import (
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Lock is a mutual exclusion lock for sections that one goroutine enters again and again and others
// seldom, such as those of an allocator or of a stream. They are mostly short; one that takes long
// after all (mapping a segment, a call that waits for ranks) costs waiters little processor.
//
// It is biased: the goroutine that has taken it many times in a row takes it from then on by a
// plain store and a load, without a locked instruction, which would also wait until every store
// before it has reached the caches.
//
// States: plain (bias is nil; taken by compare-and-swap of held), biased (bias names the owner,
// which takes it by busy). Transitions: plain to biased at an Unlock, by its holder, after
// biasAfter turns of one goroutine; biased to plain by anybody else who takes held: it withdraws
// the bias, makes every processor that runs a thread of this process pass a memory barrier
// (membarrier(2)), and waits until the owner is not busy. The owner raises busy first and looks at
// the bias then, so after the barrier either the owner has seen the withdrawal or the other sees
// busy. A TryLock that sees busy puts the bias back before it frees held. Each bias is a record of
// its own, so a late owner cannot disturb the next one.
//
// Where the system has no membarrier the Lock stays plain. Waiters yield, then sleep for moments:
// nobody is parked who would have to be woken. They get in within some hundred turns of others: by
// then the lock is biased, and held is free. The zero Lock is free. A Lock must not be copied
// after first use, and its holder must not take it again.
type Lock struct {
	bias    atomic.Pointer[bias]
	current *bias // how it was taken last; nil means by held; the holder's
	held    uint32
	streak  uint32  // turns of last in a row; the holder's
	last    uintptr // goroutine of the latest turn by held; the holder's
}

// bias says that one goroutine owns a Lock.
type bias struct {
	owner uintptr
	busy  uint32
	_     [LineBytes]byte
}

const (
	// biasAfter is how many turns in a row make an owner: enough to pay for withdrawing the bias, a
	// few microseconds.
	biasAfter = 200
	// politeRounds is how often a waiter yields before it sleeps, and nap for how long then; twice
	// as long after every politeNaps, longest times.
	politeRounds = 100
	nap          = 50 * time.Microsecond
	politeNaps   = 20
	longest      = 4
)

// goroutine identifies the running goroutine among those that run.
func goroutine() uintptr

// Lock takes the lock.
//
// The busy word is stored plainly, here and in Unlock, which spares two calls into assembly. Go's
// compiler keeps stores in program order, no load moves past a store behind it, and neither past an
// atomic load or a call; amd64 makes stores visible in that order, after all loads before them.
func (l *Lock) Lock() {
	if b := l.bias.Load(); b != nil {
		if b.owner == goroutine() && l.lockBiased(b) {
			return
		}
	}
	l.lockHeld()
}

// TryLock takes the lock if it is free, and reports whether it has. It may also fail while another
// goroutine tries. It never waits, but withdraws the bias of another goroutine to find out, which
// takes a microsecond or two; if that goroutine is inside, the bias stays.
func (l *Lock) TryLock() bool {
	if b := l.bias.Load(); b != nil && b.owner == goroutine() {
		if b.busy != 0 {
			return false // held by the caller itself
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
	// Its owner has it by the bias, which must stand then: the next to take held looks at it.
	l.bias.Store(b)
	StoreRelease32(&l.held, 0)
	return false
}

// lockBiased takes the lock for the owner of its bias, unless somebody is withdrawing that.
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

// Unlock frees the lock, which the caller holds.
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

// withdraw takes the bias back, which the owner knows by its return: from then on busy tells
// whether the owner is inside. It returns what was there, or nil. held is taken.
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

// pause lets others run, and from some round on sleeps, since who is inside may be there for long.
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

// barrier makes every running thread of this process pass a full memory barrier. It is only used
// once barriers has said that it works; a failure then would break mutual exclusion silently.
func barrier() {
	_, _, errno := syscall.RawSyscall(sysMembarrier, membarrierExpedited, 0, 0)
	if errno != 0 {
		panic("spin: membarrier failed: " + errno.Error())
	}
}
