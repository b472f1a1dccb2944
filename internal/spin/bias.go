//go:build !race && linux && amd64

package spin

import (
	"sync"
	"syscall"
)

// bias lets its owner, a goroutine, enter a Gate or acquire a Lock with plain instead of atomic
// instructions. A Gate or Lock points to its bias. Another goroutine ends the bias:
//
//	owner                   other goroutine
//	increments busy         sets the pointer to nil
//	reloads the pointer     calls barrier
//	                        waits until busy is 0
//
// If the reload precedes the barrier, the increment is visible after the barrier. Otherwise, the
// reload returns nil, and the owner decrements busy.
//
// Plain stores to busy suffice: Go's compiler moves neither loads nor stores past a later store, an
// atomic load or a call, and amd64 makes a store visible after all earlier loads and stores.
type bias struct {
	owner uintptr         // the goroutine
	busy  uint32          // the owner's nested calls in a Gate, or 1 while it holds a Lock
	_     [LineBytes]byte // keeps other variables out of the cache line of busy
}

// goroutine identifies the running goroutine. It is written in assembly.
func goroutine() uintptr

const (
	membarrierCall      = 324    // number of the system call membarrier
	membarrierExpedited = 1 << 3 // MEMBARRIER_CMD_PRIVATE_EXPEDITED
	membarrierRegister  = 1 << 4 // MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED
)

// enableBarrier registers this process for barrier. It returns false if the kernel does not support
// barrier. No goroutine gets a bias then.
var enableBarrier = sync.OnceValue(func() bool {
	_, _, errno := syscall.RawSyscall(membarrierCall, membarrierRegister, 0, 0)
	return errno == 0
})

// barrier makes every running thread of this process execute a full memory barrier. enableBarrier
// must have returned true.
func barrier() {
	_, _, errno := syscall.RawSyscall(membarrierCall, membarrierExpedited, 0, 0)
	if errno != 0 { // Without the barrier, two goroutines could hold a Lock.
		panic("spin: membarrier failed: " + errno.Error())
	}
}
