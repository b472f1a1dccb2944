//go:build invariants

package ranked

import (
	"sync"
	"unsafe"

	"symmem/internal/spin"
)

// Mutex is a sync.Mutex that checks the order in which a goroutine acquires locks. The class C of a
// lock has a rank, and locks with lower ranks must be acquired first. Lock panics if the goroutine
// already holds a lock that must be acquired later.
type Mutex[C Class] struct{ lock sync.Mutex }

// Lock acquires the lock. The address of m identifies the lock among those that the goroutine
// holds.
func (m *Mutex[C]) Lock() { lock[C](&m.lock, unsafe.Pointer(m)) }

// TryLock acquires the lock if it is free, and reports whether it did.
func (m *Mutex[C]) TryLock() bool { return tryLock[C](m.lock.TryLock(), unsafe.Pointer(m)) }

// Unlock releases the lock.
func (m *Mutex[C]) Unlock() {
	release(unsafe.Pointer(m))
	m.lock.Unlock()
}

// Spin is a spin.Lock with the checks of Mutex.
type Spin[C Class] struct{ lock spin.Lock }

// Lock acquires the lock.
func (s *Spin[C]) Lock() { lock[C](&s.lock, unsafe.Pointer(s)) }

// TryLock acquires the lock if it is free, and reports whether it did.
func (s *Spin[C]) TryLock() bool { return tryLock[C](s.lock.TryLock(), unsafe.Pointer(s)) }

// Unlock releases the lock.
func (s *Spin[C]) Unlock() {
	release(unsafe.Pointer(s))
	s.lock.Unlock()
}

// RWMutex is a sync.RWMutex with the checks of Mutex. RLock also panics if the goroutine already
// holds the lock, because this would deadlock if a writer waited between the two calls.
type RWMutex[C Class] struct{ lock sync.RWMutex }

// Lock acquires the lock for writing.
func (m *RWMutex[C]) Lock() { lock[C](&m.lock, unsafe.Pointer(m)) }

// TryLock acquires the lock for writing if it is free, and reports whether it did.
func (m *RWMutex[C]) TryLock() bool { return tryLock[C](m.lock.TryLock(), unsafe.Pointer(m)) }

// Unlock releases a lock that was acquired for writing.
func (m *RWMutex[C]) Unlock() {
	release(unsafe.Pointer(m))
	m.lock.Unlock()
}

// RLock acquires the lock for reading.
func (m *RWMutex[C]) RLock() { lock[C](m.lock.RLocker(), unsafe.Pointer(m)) }

// TryRLock acquires the lock for reading if no writer holds it, and reports whether it did.
func (m *RWMutex[C]) TryRLock() bool { return tryLock[C](m.lock.TryRLock(), unsafe.Pointer(m)) }

// RUnlock releases a lock that was acquired for reading.
func (m *RWMutex[C]) RUnlock() {
	release(unsafe.Pointer(m))
	m.lock.RUnlock()
}

// lock checks the order, acquires l and records it among the goroutine's locks. address identifies
// the lock. The check comes first, because acquiring l in a wrong order could deadlock.
func lock[C Class](l sync.Locker, address unsafe.Pointer) {
	var class C
	rank := class.Rank()
	checkOrder(rank, address)
	l.Lock()
	recordLock(rank, address, maxFrames)
}

// tryLock is called after the TryLock of a lock. It records the lock if TryLock has acquired it,
// and returns isAcquired. It does not check the order, because TryLock cannot deadlock.
func tryLock[C Class](isAcquired bool, address unsafe.Pointer) bool {
	if isAcquired {
		var class C
		recordLock(class.Rank(), address, tryFrames)
	}

	return isAcquired
}

// AssertMayWait panics if the goroutine holds a lock that must not be held during a wait for
// another process. Call it before each such wait.
func AssertMayWait() { checkWait() }

// AssertUnlocked panics if the goroutine holds any lock. Call it before each call of a user's
// function, because the function may call back and acquire any lock.
func AssertUnlocked() { checkUnlocked() }
