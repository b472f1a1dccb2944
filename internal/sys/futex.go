package sys

import (
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	futexWait = 0 // not private, because processes share the word
	futexWake = 1
)

// FutexWait sleeps until FutexWake is called for the word, timeout has passed, or a signal arrives.
// It returns at once unless the word contains want.
func FutexWait(word *uint32, want uint32, timeout time.Duration) {
	ts := unix.NsecToTimespec(int64(timeout))
	unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWait, uintptr(want),
		uintptr(unsafe.Pointer(&ts)), 0, 0)
}

// FutexWake wakes all threads, in any process, that sleep on the word.
func FutexWake(word *uint32) {
	const maxWoken = 1 << 30 // more than there can be threads
	unix.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWake, maxWoken, 0, 0, 0)
}

// Yield lets another process on this machine run. It bypasses the Go scheduler.
func Yield() { unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }

// Cores returns the number of processors that this process may use. Go has applied the cgroup quota
// to GOMAXPROCS.
func Cores() int {
	return min(runtime.NumCPU(), runtime.GOMAXPROCS(0))
}
