//go:build invariants

package ranked

import (
	"sync"
	"unsafe"

	"symmem/internal/spin"
)

// Two goroutines that acquire the same two locks in different orders can wait for each other
// forever. Therefore, each kind of lock has a position in an order. Suppose that group locks have
// the position 3, and pool locks the position 5. A goroutine may lock a group and then a pool. If
// it locks a pool and then a group, the second Lock panics.
//
// A lock's type parameter, its class, determines its position. The address of a lock distinguishes
// it from others of the same class.

// Mutex is a sync.Mutex that checks the order in which a goroutine acquires locks. Lock panics if
// the goroutine holds a lock with a later position. It also panics if the goroutine holds a lock of
// the same class, unless the class permits that.
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

// RWMutex is a sync.RWMutex with the checks of Mutex. They also apply to readers: a goroutine must
// not call RLock twice. If a writer began to wait between the two calls, the second call would wait
// for the writer, and the writer for the first reader.
type RWMutex[C Class] struct{ lock sync.RWMutex }

// Lock acquires the lock for writing.
func (m *RWMutex[C]) Lock() { lock[C](&m.lock, unsafe.Pointer(m)) }

// TryLock acquires the lock for writing if it is free, and reports whether it did.
func (m *RWMutex[C]) TryLock() bool { return tryLock[C](m.lock.TryLock(), unsafe.Pointer(m)) }

// Unlock releases the lock for writing.
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

// lock checks the order, acquires l, and records that the goroutine holds it. The check comes
// first, because the goroutine could otherwise wait forever.
func lock[C Class](l sync.Locker, address unsafe.Pointer) {
	var class C
	rank := class.Rank() // contains the position and the name of the class
	checkOrder(rank, address)
	l.Lock()
	recordLock(rank, address, maxFrames)
}

// tryLock records that the goroutine holds a lock, if a TryLock has just acquired it. It returns
// isAcquired. It does not check the order, because TryLock does not wait.
func tryLock[C Class](isAcquired bool, address unsafe.Pointer) bool {
	if isAcquired {
		var class C
		recordLock(class.Rank(), address, tryFrames)
	}

	return isAcquired
}

// AssertMayWait panics if the goroutine holds a lock that must not be held during a wait for
// another process. The lock's class determines this. Call AssertMayWait before each such wait.
func AssertMayWait() { checkWait() }

// AssertUnlocked panics if the goroutine holds any lock. Call it before each call of a user's
// function, because the function may call back and acquire any lock.
func AssertUnlocked() { checkUnlocked() }
