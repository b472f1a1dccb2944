package sys

import (
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	futexWait = 0 // FUTEX_WAIT without FUTEX_PRIVATE_FLAG: the word is shared between processes.
	futexWake = 1
)

// FutexWait sleeps until the word is woken, it no longer holds want, d has passed, or a signal
// arrives. Callers must check their condition again in every case. The word lies in memory shared
// between processes.
func FutexWait(word *uint32, want uint32, d time.Duration) {
	ts := unix.NsecToTimespec(int64(d))
	unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWait, uintptr(want),
		uintptr(unsafe.Pointer(&ts)), 0, 0)
}

// FutexWake wakes all processes that sleep on the word.
func FutexWake(word *uint32) {
	unix.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWake, 1<<30, 0, 0, 0)
}

// Yield lets another process run. It bypasses the Go scheduler: the caller keeps its P, as a rank
// needs that waits for another process of the same machine.
func Yield() { unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }

// Cores returns the number of processors that this process may use: the size of its affinity mask,
// reduced to a cgroup quota that Go applied to GOMAXPROCS.
func Cores() int {
	return min(runtime.NumCPU(), runtime.GOMAXPROCS(0))
}
