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

// ncclComm wraps a communicator of NCCL. Except for destroy, methods that call NCCL can wait for
// other ranks forever.
type ncclComm struct {
	gpu        *gpu.GPU
	library    *nccl.Library
	handle     nccl.Comm
	isAborting atomic.Bool // set before abort or destroy
	// mayMapCaptured is set once a CUDA graph has used memory outside windows. NCCL may map such
	// memory on other ranks.
	mayMapCaptured atomic.Bool

	// communicator.mu guards the following fields.

	isSuspended bool
	// afterResume calls releaseCaptured, or is nil. It waits for resume, because a kernel of a
	// suspended communicator would destroy the CUDA context.
	afterResume func() error
}

// register makes a segment of memory on each rank a window, which NCCL kernels can access from all
// ranks. All ranks must call it. The window is 0 if NCCL cannot use windows. The caller must hold
// communicator.mu.
func (n *ncclComm) register(s *memory.Segment) (nccl.Window, error) {
	return gpu.Get(n.gpu, func() (nccl.Window, error) {
		return n.library.WindowRegister(n.handle, s.Address(), s.Bytes())
	})
}

// deregister frees a window, unless abort or destroy frees all windows. The caller must hold
// communicator.mu.
func (n *ncclComm) deregister(w nccl.Window) error {
	if n.isAborting.Load() {
		return nil
	}

	return n.gpu.Do(func() error { return n.library.WindowDeregister(n.handle, w) })
}

// abort ends the kernels, waits until the device is idle, and frees the communicator.
func (n *ncclComm) abort() error {
	return n.gpu.Do(func() error { return n.library.CommAbort(n.handle) })
}

// destroy frees the communicator after NCCL has sent the last data to other machines. If this takes
// longer than the group's timeout, because of the defect nccl.EndlessDestroy, destroy leaks the
// communicator, a thread and the CUDA context.
func (n *ncclComm) destroy(cfg *driver.GroupConfig) error {
	result := make(chan error, 1)
	go func() {
		// CommDestroy of a failed communicator makes the calling thread unusable. Without an unlock, the
		// thread ends with this goroutine.
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

// queueGroup queues calls as one NCCL group. It always ends the group, even after an error.
func (n *ncclComm) queueGroup(calls []nccl.Invocation, s cuda.Stream) error {
	return n.gpu.Do(func() error { // on one thread, because an NCCL group belongs to its thread
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

// releaseCaptured makes other ranks unmap memory that destroyed graphs have used outside windows.
// For this, it queues NCCL groups that send one byte at the GPU address from this rank to itself.
// The caller must hold communicator.mu.
func (n *ncclComm) releaseCaptured(rank int, address uintptr) error {
	const unmapInterval = 11 // NCCL unmaps such memory in every 11th NCCL group
	const count = 1
	err := n.gpu.Do(func() error {
		calls := []nccl.Invocation{
			n.library.Send(address, count, nccl.Uint8, rank, n.handle),
			n.library.Recv(address, count, nccl.Uint8, rank, n.handle),
		}
		return n.gpu.InternalStreams.Run(n.gpu, func(stream cuda.Stream) error {
			for range unmapInterval {
				if err := n.queueGroup(calls, stream); err != nil {
					return err
				}
			}

			return nil
		})
	})
	if err != nil {
		return fmt.Errorf("releasing the memory of closed graphs: %w", err)
	}

	return nil
}

// awaitDestroyedGraphs waits until CUDA has notified NCCL of all destroyed graphs. It destroys an
// empty graph and waits for its notification, because CUDA sends notifications in order.
func awaitDestroyedGraphs(g *gpu.GPU) error {
	notified := make(chan struct{})
	err := g.Do(func() error {
		return g.InternalStreams.Run(g, func(stream cuda.Stream) error {
			err := callAfterEmptyGraph(g, stream, func() { close(notified) })
			if errors.As(err, new(*cuda.MissingError)) { // this CUDA version has no notifications
				close(notified)
				return nil
			}

			return err
		})
	})
	if err != nil {
		return fmt.Errorf("waiting for the end of closed graphs: %w", err)
	}

	timer := time.NewTimer(g.Timeout)
	defer timer.Stop()
	select {
	case <-notified:
		return nil
	case <-timer.C:
		return fmt.Errorf("CUDA has not reported the end of closed graphs for %v, so NCCL may still "+
			"use their memory: %w", g.Timeout, driver.ErrBusy)
	}
}

// callAfterEmptyGraph destroys a new empty graph. CUDA then runs callback.
func callAfterEmptyGraph(g *gpu.GPU, stream cuda.Stream, callback func()) error {
	if err := g.CUDA.BeginCapture(stream, cuda.CaptureRelaxed); err != nil {
		return err
	}

	graph, err := g.CUDA.EndCapture(stream)
	if err != nil {
		return err
	}

	callErr := g.CUDA.CallAfterGraph(graph, callback)
	destroyErr := g.CUDA.GraphDestroy(graph)
	return errors.Join(callErr, destroyErr)
}

// suspend releases NCCL's memory until resume. The caller must hold communicator.mu.
func (n *ncclComm) suspend() error {
	err := n.gpu.Do(func() error { return n.library.CommSuspend(n.handle) })
	n.isSuspended = err == nil
	return err
}

// resume undoes suspend. The caller must hold communicator.mu.
func (n *ncclComm) resume() error {
	if err := n.gpu.Do(func() error { return n.library.CommResume(n.handle) }); err != nil {
		return err
	}

	n.isSuspended = false
	release := n.afterResume
	n.afterResume = nil
	if release == nil {
		return nil
	}

	return release()
}

func (n *ncclComm) asyncError(group string) error {
	err := n.library.AsyncError(n.handle)
	if err == nil || errors.Is(err, nccl.ErrInProgress) {
		return nil
	}

	return fmt.Errorf("group %s: %w", group, err)
}

// waitError returns the error of a wait that ctx has ended: a TimeoutError if the deadline has
// passed, and otherwise the cause of ctx.
func waitError(ctx context.Context, callText string, begin time.Time) error {
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("%s: %w", callText, context.Cause(ctx))
	}

	return &driver.TimeoutError{
		InCall: callText, Waited: time.Since(begin).Round(time.Millisecond),
	}
}
