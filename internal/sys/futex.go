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

// FutexWait sleeps until somebody wakes the word, it no longer holds want, the time is over or a
// signal comes: callers look at their condition again in every case. The word lies in memory that
// is shared between processes, and the wait is for at most d.
func FutexWait(word *uint32, want uint32, d time.Duration) {
	ts := unix.NsecToTimespec(int64(d))
	unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWait, uintptr(want),
		uintptr(unsafe.Pointer(&ts)), 0, 0)
}

// FutexWake wakes every process that sleeps on the word.
func FutexWake(word *uint32) {
	unix.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWake, 1<<30, 0, 0, 0)
}

// Yield gives the processor to another process. The Go scheduler is not told: the caller keeps
// its P, which is what a rank wants that waits for another process of the same machine.
func Yield() { unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }

// Cores returns how many processors this process may use: its affinity mask, lowered by a cgroup
// quota where Go's own GOMAXPROCS has seen one.
func Cores() int {
	return min(runtime.NumCPU(), runtime.GOMAXPROCS(0))
}
