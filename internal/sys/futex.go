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

// FutexWait sleeps until FutexWake is called for the word, d has passed, or a signal arrives. It
// returns immediately unless the word contains want.
func FutexWait(word *uint32, want uint32, d time.Duration) {
	ts := unix.NsecToTimespec(int64(d))
	unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWait, uintptr(want),
		uintptr(unsafe.Pointer(&ts)), 0, 0)
}

// FutexWake wakes all threads, in any process, that sleep on the word.
func FutexWake(word *uint32) {
	unix.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWake, 1<<30, 0, 0, 0)
}

// Yield lets another process on this machine run. It bypasses the Go scheduler.
func Yield() { unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }

// Cores returns the number of processors that this process may use. Go has applied the cgroup quota
// to GOMAXPROCS.
func Cores() int {
	return min(runtime.NumCPU(), runtime.GOMAXPROCS(0))
}
