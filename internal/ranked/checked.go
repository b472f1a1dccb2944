//go:build invariants

package ranked

import (
	"sync"
	"unsafe"

	"symmem/internal/spin"
)

// Mutex is a sync.Mutex whose Lock panics if the goroutine holds a lock that must be acquired
// after it, according to the ranks of their classes. Its address identifies it among the held
// locks.
type Mutex[C Class] struct{ lock sync.Mutex }

// Lock acquires the lock.
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

// RWMutex is a sync.RWMutex with the checks of Mutex. A second RLock by a goroutine panics,
// because it deadlocks if a writer is waiting.
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

// lock checks the order, acquires l and records it among the goroutine's locks. The check precedes
// the acquisition, because a violation could deadlock.
func lock[C Class](l sync.Locker, address unsafe.Pointer) {
	var class C
	rank := class.Rank()
	checkOrder(rank, address)
	l.Lock()
	recordLock(rank, address, maxFrames)
}

// tryLock records a lock if a call of its TryLock returned true, and returns isAcquired. It does
// not check the order, because TryLock cannot deadlock.
func tryLock[C Class](isAcquired bool, address unsafe.Pointer) bool {
	if isAcquired {
		var class C
		recordLock(class.Rank(), address, tryFrames)
	}
	return isAcquired
}

// AssertMayWait panics if the goroutine holds a lock that must not be held during a wait for
// another process. It must precede each wait.
func AssertMayWait() { checkWait() }

// AssertUnlocked panics if the goroutine holds any lock. It must precede each call of a user's
// function, which can acquire any lock.
func AssertUnlocked() { checkUnlocked() }
