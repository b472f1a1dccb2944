//go:build invariants

package ranked

import (
	"sync"
	"unsafe"

	"symmem/internal/spin"
)

// Mutex is a sync.Mutex of a class. Every Lock of it is checked.
type Mutex[C Class] struct{ lock sync.Mutex }

// Lock takes the lock.
func (m *Mutex[C]) Lock() { lock[C](&m.lock, unsafe.Pointer(m)) }

// TryLock takes the lock if it is free, and reports whether it has.
func (m *Mutex[C]) TryLock() bool { return tryLock[C](m.lock.TryLock(), unsafe.Pointer(m)) }

// Unlock frees the lock.
func (m *Mutex[C]) Unlock() {
	release(unsafe.Pointer(m))
	m.lock.Unlock()
}

// Spin is a spin.Lock of a class. Every Lock of it is checked.
type Spin[C Class] struct{ lock spin.Lock }

// Lock takes the lock.
func (s *Spin[C]) Lock() { lock[C](&s.lock, unsafe.Pointer(s)) }

// TryLock takes the lock if it is free, and reports whether it has.
func (s *Spin[C]) TryLock() bool { return tryLock[C](s.lock.TryLock(), unsafe.Pointer(s)) }

// Unlock frees the lock.
func (s *Spin[C]) Unlock() {
	release(unsafe.Pointer(s))
	s.lock.Unlock()
}

// RWMutex is a sync.RWMutex of a class. Every Lock and RLock of it is checked; to take it for
// reading twice is refused, since a writer may come in between.
type RWMutex[C Class] struct{ lock sync.RWMutex }

// Lock takes the lock for writing.
func (m *RWMutex[C]) Lock() { lock[C](&m.lock, unsafe.Pointer(m)) }

// TryLock takes the lock for writing if it is free, and reports whether it has.
func (m *RWMutex[C]) TryLock() bool { return tryLock[C](m.lock.TryLock(), unsafe.Pointer(m)) }

// Unlock frees the lock that was taken for writing.
func (m *RWMutex[C]) Unlock() {
	release(unsafe.Pointer(m))
	m.lock.Unlock()
}

// RLock takes the lock for reading.
func (m *RWMutex[C]) RLock() { lock[C](m.lock.RLocker(), unsafe.Pointer(m)) }

// TryRLock takes the lock for reading if no writer has it, and reports whether it has.
func (m *RWMutex[C]) TryRLock() bool { return tryLock[C](m.lock.TryRLock(), unsafe.Pointer(m)) }

// RUnlock frees the lock that was taken for reading.
func (m *RWMutex[C]) RUnlock() {
	release(unsafe.Pointer(m))
	m.lock.RUnlock()
}

// lock checks the order, and takes a lock.
func lock[C Class](l sync.Locker, at unsafe.Pointer) {
	var class C
	rank := class.Rank()
	check(rank, at)
	l.Lock()
	hold(rank, at, frames)
}

// tryLock notes a lock that was taken without waiting.
func tryLock[C Class](taken bool, at unsafe.Pointer) bool {
	if taken {
		var class C
		hold(class.Rank(), at, triedFrames)
	}
	return taken
}

// Waiting says that the caller is about to wait for another rank. It panics where the goroutine
// holds a lock that is not to be held meanwhile.
func Waiting() { checkWait() }
