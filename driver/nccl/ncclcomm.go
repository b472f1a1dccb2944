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
	"symmem/internal/nccl"
)

// ncclComm wraps a group's ncclComm_t. Its methods can wait for other ranks without a deadline.
// Callers of register and deregister must hold communicator.mu.
type ncclComm struct {
	gpu        *gpu.GPU
	library    *nccl.Library
	handle     nccl.Comm
	isAborting atomic.Bool // the abort frees the windows
}

// abort waits until the device is idle.
func (n *ncclComm) abort() error {
	return n.gpu.Do(func() error { return n.library.CommAbort(n.handle) })
}

// destroy frees the communicator after NCCL has sent the last data to other machines, and can block
// on other ranks. If the communicator has failed, CommDestroy frees nothing and makes its thread
// unusable, so destroy then calls abort on another thread.
func (n *ncclComm) destroy() error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // not unlocked, so that the thread ends with the goroutine
		result <- n.gpu.Do(func() error { return n.library.CommDestroy(n.handle) })
	}()
	if <-result == nil {
		return nil
	}
	return n.abort()
}

func (n *ncclComm) register(s *memory.Segment) (nccl.Window, error) {
	return gpu.Get(n.gpu, func() (nccl.Window, error) {
		return n.library.WindowRegister(n.handle, s.Address(), s.Bytes())
	})
}

func (n *ncclComm) deregister(w nccl.Window) error {
	if n.isAborting.Load() {
		return nil
	}
	return n.gpu.Do(func() error { return n.library.WindowDeregister(n.handle, w) })
}

func (n *ncclComm) suspend() error {
	return n.gpu.Do(func() error { return n.library.CommSuspend(n.handle) })
}

func (n *ncclComm) resume() error {
	return n.gpu.Do(func() error { return n.library.CommResume(n.handle) })
}

func (n *ncclComm) asyncError(group string) error {
	err := n.library.AsyncError(n.handle)
	if err == nil || errors.Is(err, nccl.ErrInProgress) {
		return nil
	}
	return fmt.Errorf("group %s: %w", group, err)
}

func waitError(ctx context.Context, operation string, begin time.Time) error {
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("%s: %w", operation, context.Cause(ctx))
	}
	return &driver.TimeoutError{
		InCall: operation, Waited: time.Since(begin).Round(time.Millisecond),
	}
}
