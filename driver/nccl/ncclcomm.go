package nccl

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/driver/nccl/internal/memory"
	"symmem/internal/cuda"
	"symmem/internal/nccl"
)

// ncclComm wraps a communicator of NCCL. Methods that call NCCL can wait for other ranks forever,
// except for destroy, which has a timeout.
type ncclComm struct {
	gpu       *gpu.GPU
	library   *nccl.Library
	handle    nccl.Comm
	isFreeing atomic.Bool // set before abort or destroy
	// mayMapCaptured is set once a CUDA graph contains a call on memory outside windows. NCCL may map
	// this memory on other ranks.
	mayMapCaptured atomic.Bool

	// communicator.mu guards the following fields. Callers of register, deregister, suspend and
	// resume hold it.

	isSuspended bool
	afterResume func() error // called by the next resume, or nil
}

// register makes a segment of memory on each rank a window, which NCCL kernels can access from all
// ranks. All ranks must call it. The window is 0 if NCCL cannot use windows.
func (n *ncclComm) register(s *memory.Segment) (nccl.Window, error) {
	return gpu.Get(n.gpu, func() (nccl.Window, error) {
		return n.library.WindowRegister(n.handle, s.Address(), s.Bytes())
	})
}

func (n *ncclComm) deregister(w nccl.Window) error {
	if n.isFreeing.Load() { // abort and destroy free all windows
		return nil
	}

	return n.gpu.Do(func() error { return n.library.WindowDeregister(n.handle, w) })
}

// abort ends the kernels, waits until the device is idle, and frees the communicator.
func (n *ncclComm) abort() error {
	return n.gpu.Do(func() error { return n.library.CommAbort(n.handle) })
}

// destroy frees the communicator after NCCL has sent the last data to other machines. After the
// group's timeout (see nccl.EndlessDestroy), it leaks the communicator, a thread and the CUDA
// context.
func (n *ncclComm) destroy(cfg *driver.GroupConfig) error {
	result := make(chan error, 1)
	go func() {
		// CommDestroy can make its thread unusable. A locked thread ends with this goroutine.
		runtime.LockOSThread()
		result <- n.gpu.Do(func() error { return n.library.CommDestroy(n.handle) })
	}()
	timeout := cfg.Timeout.Get()
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case err := <-result:
		if err == nil {
			return nil
		}

		return n.abort() // CommDestroy has freed nothing
	case <-timer.C:
		n.gpu.Hold() // keeps the CUDA context, which CommDestroy still uses
		return &driver.TimeoutError{
			InCall: "destroying NCCL's communicator of group " + cfg.Name(), Waited: timeout,
		}
	}
}

// queueGroup queues calls as one NCCL group.
func (n *ncclComm) queueGroup(calls []nccl.Invocation, s cuda.Stream) error {
	return n.gpu.Do(func() error { // on one thread, as an NCCL group requires
		err := n.library.GroupStart()
		if err != nil {
			return err
		}

		for i := range calls {
			if err = calls[i].On(s); err != nil {
				break
			}
		}

		endErr := n.library.GroupEnd()
		return errors.Join(err, endErr)
	})
}

// suspend releases NCCL's memory until resume.
func (n *ncclComm) suspend() error {
	err := n.gpu.Do(func() error { return n.library.CommSuspend(n.handle) })
	n.isSuspended = err == nil
	return err
}

// resume undoes suspend.
func (n *ncclComm) resume() error {
	if err := n.gpu.Do(func() error { return n.library.CommResume(n.handle) }); err != nil {
		return err
	}

	n.isSuspended = false
	afterResume := n.afterResume
	n.afterResume = nil
	if afterResume == nil {
		return nil
	}

	return afterResume()
}

// asyncError returns the error of NCCL's threads or of earlier calls, or nil.
func (n *ncclComm) asyncError(group string) error {
	err := n.library.AsyncError(n.handle)
	if err == nil || errors.Is(err, nccl.ErrInProgress) {
		return nil
	}

	return fmt.Errorf("group %s: %w", group, err)
}

// waitError returns the error of a wait that ctx has ended.
func waitError(ctx context.Context, callText string, begin time.Time) error {
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("%s: %w", callText, context.Cause(ctx))
	}

	return &driver.TimeoutError{
		InCall: callText, Waited: time.Since(begin).Round(time.Millisecond),
	}
}
