//go:build invariants

package ranked

import (
	"sync"
	"unsafe"

	"symmem/internal/spin"
)

// Mutex is a sync.Mutex that prevents deadlocks by a fixed order of locks. The Rank of its class C
// contains its position. For example, group locks at 3 precede pool locks at 5. Lock panics if the
// goroutine already holds this lock, a lock with a later position, or another lock of the class,
// unless the Rank has AllowsSeveral.
type Mutex[C Class] struct{ mu sync.Mutex }

// Lock acquires the lock.
func (m *Mutex[C]) Lock() { lock[C](&m.mu, unsafe.Pointer(m)) }

// TryLock acquires the lock if it is free, and reports whether it did.
func (m *Mutex[C]) TryLock() bool { return recordTry[C](m.mu.TryLock(), unsafe.Pointer(m)) }

// Unlock releases the lock.
func (m *Mutex[C]) Unlock() {
	release(unsafe.Pointer(m))
	m.mu.Unlock()
}

// Spin is a spin.Lock with the checks of Mutex.
type Spin[C Class] struct{ spin spin.Lock }

// Lock acquires the lock.
func (s *Spin[C]) Lock() { lock[C](&s.spin, unsafe.Pointer(s)) }

// TryLock acquires the lock if it is free, and reports whether it did.
func (s *Spin[C]) TryLock() bool { return recordTry[C](s.spin.TryLock(), unsafe.Pointer(s)) }

// Unlock releases the lock.
func (s *Spin[C]) Unlock() {
	release(unsafe.Pointer(s))
	s.spin.Unlock()
}

// RWMutex is a sync.RWMutex with the checks of Mutex, which also apply to readers. In particular, a
// goroutine must not call RLock twice: a writer that arrives in between would cause a deadlock.
type RWMutex[C Class] struct{ rw sync.RWMutex }

// Lock acquires the lock for writing.
func (m *RWMutex[C]) Lock() { lock[C](&m.rw, unsafe.Pointer(m)) }

// TryLock acquires the lock for writing if it is free, and reports whether it did.
func (m *RWMutex[C]) TryLock() bool { return recordTry[C](m.rw.TryLock(), unsafe.Pointer(m)) }

// Unlock releases the lock for writing.
func (m *RWMutex[C]) Unlock() {
	release(unsafe.Pointer(m))
	m.rw.Unlock()
}

// RLock acquires the lock for reading.
func (m *RWMutex[C]) RLock() { lock[C](m.rw.RLocker(), unsafe.Pointer(m)) }

// TryRLock acquires the lock for reading if no writer holds it, and reports whether it did.
func (m *RWMutex[C]) TryRLock() bool { return recordTry[C](m.rw.TryRLock(), unsafe.Pointer(m)) }

// RUnlock releases a lock that was acquired for reading.
func (m *RWMutex[C]) RUnlock() {
	release(unsafe.Pointer(m))
	m.rw.RUnlock()
}

// lock acquires a lock. It checks the order first, because a deadlock would prevent a later check.
// The address identifies the lock within its class.
func lock[C Class](l sync.Locker, address unsafe.Pointer) {
	var class C
	rank := class.Rank()
	checkOrder(rank, address)
	l.Lock()
	recordLock(rank, address, maxFrames)
}

// recordTry records the lock if TryLock has acquired it, and returns isAcquired. It does not check
// the order, because TryLock does not wait.
func recordTry[C Class](isAcquired bool, address unsafe.Pointer) bool {
	if isAcquired {
		var class C
		recordLock(class.Rank(), address, tryFrames)
	}

	return isAcquired
}

// AssertMayWait panics if the goroutine holds a lock without Rank.CanWait. Call it before each wait
// for another process.
func AssertMayWait() { checkWait() }

// AssertUnlocked panics if the goroutine holds any lock. Call it before each call of a user's
// function, which may acquire any lock.
func AssertUnlocked() { checkUnlocked() }
