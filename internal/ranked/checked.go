//go:build invariants

package ranked

import (
	"sync"
	"unsafe"

	"symmem/internal/spin"
)

// Mutex is a sync.Mutex. The Rank of its class C is its position in the order of locks.
// Lock panics if the goroutine already holds
//   - this lock,
//   - a lock with a later position, or
//   - another lock of class C, unless its Rank has AllowsSeveral.
type Mutex[C Class] struct{ mu sync.Mutex }

// Lock acquires the lock.
func (m *Mutex[C]) Lock() { lock[C](&m.mu, unsafe.Pointer(m)) }

// TryLock acquires the lock if it is free, and reports whether it did.
func (m *Mutex[C]) TryLock() bool {
	isAcquired := m.mu.TryLock()
	return recordTry[C](isAcquired, unsafe.Pointer(m))
}

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
func (s *Spin[C]) TryLock() bool {
	isAcquired := s.spin.TryLock()
	return recordTry[C](isAcquired, unsafe.Pointer(s))
}

// Unlock releases the lock.
func (s *Spin[C]) Unlock() {
	release(unsafe.Pointer(s))
	s.spin.Unlock()
}

// RWMutex is a sync.RWMutex with the checks of Mutex, for readers and writers.
type RWMutex[C Class] struct{ rw sync.RWMutex }

// Lock acquires the lock for writing.
func (m *RWMutex[C]) Lock() { lock[C](&m.rw, unsafe.Pointer(m)) }

// TryLock acquires the lock for writing if it is free, and reports whether it did.
func (m *RWMutex[C]) TryLock() bool {
	isAcquired := m.rw.TryLock()
	return recordTry[C](isAcquired, unsafe.Pointer(m))
}

// Unlock releases the lock for writing.
func (m *RWMutex[C]) Unlock() {
	release(unsafe.Pointer(m))
	m.rw.Unlock()
}

// RLock acquires the lock for reading.
func (m *RWMutex[C]) RLock() { lock[C](m.rw.RLocker(), unsafe.Pointer(m)) }

// TryRLock acquires the lock for reading if no writer holds it, and reports whether it did.
func (m *RWMutex[C]) TryRLock() bool {
	isAcquired := m.rw.TryRLock()
	return recordTry[C](isAcquired, unsafe.Pointer(m))
}

// RUnlock releases a lock that was acquired for reading.
func (m *RWMutex[C]) RUnlock() {
	release(unsafe.Pointer(m))
	m.rw.RUnlock()
}

// lock checks the order before it acquires a lock, because l.Lock may wait forever.
func lock[C Class](l sync.Locker, address unsafe.Pointer) {
	var class C
	rank := class.Rank()
	checkOrder(rank, address)
	l.Lock()
	recordLock(rank, address, maxFrames)
}

// recordTry records an acquired lock, and returns isAcquired. It does not check the order, because
// TryLock does not wait.
func recordTry[C Class](isAcquired bool, address unsafe.Pointer) bool {
	if isAcquired {
		var class C
		recordLock(class.Rank(), address, maxTryFrames)
	}

	return isAcquired
}
