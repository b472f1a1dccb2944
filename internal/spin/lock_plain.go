//go:build !race && !(linux && amd64)

package spin

import (
	"runtime"
	"sync/atomic"
	"time"
)

// Lock is a mutual exclusion lock for sections of some nanoseconds that are nearly never
// contended, such as those of an allocator. It costs one locked instruction where sync.Mutex costs
// two: its unlock is a plain release store, because nobody is parked who would have to be woken.
// Who finds it taken lets other goroutines run and, when that does not help, sleeps for a moment,
// so a section that takes long after all (mapping a segment) costs waiters no processor.
//
// The zero Lock is free. A Lock must not be copied after first use.
type Lock struct{ held uint32 }

// Rounds and sleep of a waiter.
const (
	politeRounds = 100
	nap          = 50 * time.Microsecond
)

// Lock takes the lock.
func (l *Lock) Lock() {
	if !atomic.CompareAndSwapUint32(&l.held, 0, 1) {
		l.wait()
	}
}

// TryLock takes the lock if it is free, and tells whether it has.
func (l *Lock) TryLock() bool { return atomic.CompareAndSwapUint32(&l.held, 0, 1) }

func (l *Lock) wait() {
	for round := 0; ; round++ {
		if atomic.LoadUint32(&l.held) == 0 && atomic.CompareAndSwapUint32(&l.held, 0, 1) {
			return
		}
		if round < politeRounds {
			runtime.Gosched()
			continue
		}
		time.Sleep(nap)
	}
}

// Unlock frees the lock, which the caller holds.
func (l *Lock) Unlock() { StoreRelease32(&l.held, 0) }
