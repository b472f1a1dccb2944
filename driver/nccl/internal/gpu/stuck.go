package gpu

import (
	"sync/atomic"
	"time"
)

// EndingTime bounds the wait for kernels to end after they were signaled to. Tests on the software
// GPU raise it, because there kernels are threads that compete for the machine's processors.
var EndingTime = time.Second

// Stuck reports whether a GPU of this process has a kernel that ends only with the process. NCCL
// may then never finish destroying a communicator, because it waits for whole devices.
var Stuck atomic.Bool

// ClosingTime returns how long a Close waits for work that usually may take usual. If a kernel is
// stuck, work behind it on any stream may never end; its memory stays mapped, so the wait is short.
func ClosingTime(usual time.Duration) time.Duration {
	if Stuck.Load() {
		return min(usual, EndingTime)
	}
	return usual
}
