package nccl

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/driver/nccl/internal/memory"
	"symmem/internal/nccl"
)

// ncclComm is NCCL's communicator of a group. NCCL wants one thread at a time in the methods that
// make and take back windows, so they are called with communicator.mu held.
type ncclComm struct {
	gpu     *gpu.GPU
	library *nccl.Library
	handle  nccl.Comm
	// aborting reports whether NCCL ends the communicator, and with it the windows that it still has.
	aborting atomic.Bool
}

// abort ends the communicator. It waits until the device is idle.
func (n *ncclComm) abort() error {
	return n.gpu.Do(func() error { return n.library.CommAbort(n.handle) })
}

// register makes a window over a segment. NCCL waits in it for all ranks, without a deadline.
func (n *ncclComm) register(s *memory.Segment) (nccl.Window, error) {
	return gpu.Get(n.gpu, func() (nccl.Window, error) {
		return n.library.WindowRegister(n.handle, s.Address(), s.Bytes())
	})
}

// deregister takes a window back, unless it ends with the communicator.
func (n *ncclComm) deregister(w nccl.Window) error {
	if n.aborting.Load() {
		return nil
	}
	return n.gpu.Do(func() error { return n.library.WindowDeregister(n.handle, w) })
}

// asyncError returns what NCCL reports to have failed behind its calls, or nil.
func (n *ncclComm) asyncError(group string) error {
	err := n.library.AsyncError(n.handle)
	if err == nil || errors.Is(err, nccl.ErrInProgress) {
		return nil
	}
	return fmt.Errorf("group %s: %w", group, err)
}

// overdue returns the error of a wait for NCCL, which does not report the missing ranks, after its
// context has ended.
func overdue(ctx context.Context, doing string, begin time.Time) error {
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("%s: %w", doing, context.Cause(ctx))
	}
	return &driver.TimeoutError{Doing: doing, Waited: time.Since(begin).Round(time.Millisecond)}
}
