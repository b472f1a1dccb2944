package gpu

import (
	"sync/atomic"
	"time"
)

// EndingTime bounds the wait for kernels to end after they were told to. Tests on the software GPU
// have more: its kernels are threads, which wait for the machine's other work.
var EndingTime = time.Second

// Stuck reports whether a GPU of this process has a kernel that only the end of the process ends.
// Then NCCL may never be done with any communicator, since it waits for whole devices.
var Stuck atomic.Bool

// ClosingTime is how long a Close waits for work. Where a kernel does not end, what waits for it
// does not either, also on other streams; memory stays mapped then, so there is no need to wait.
func ClosingTime(usual time.Duration) time.Duration {
	if Stuck.Load() {
		return min(usual, EndingTime)
	}
	return usual
}
