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

// ncclComm wraps a group's ncclComm_t, NCCL's communicator. Its methods can wait for other ranks
// without a time limit, except for destroy.
type ncclComm struct {
	gpu     *gpu.GPU
	library *nccl.Library
	handle  nccl.Comm
	// isAborting is set before abort or destroy is called. These free the windows, so deregister
	// then does nothing.
	isAborting atomic.Bool
	// mayMapCaptured is set once plain calls have been captured, because NCCL may have mapped their
	// memory on other ranks.
	mayMapCaptured atomic.Bool

	// communicator.mu guards the following fields.

	isSuspended bool
	// afterResume is called by resume. It is nil or calls releaseCaptured, which must not launch
	// kernels of a suspended communicator, because they would destroy the CUDA context.
	afterResume func() error
}

// abort frees the communicator, after ending its kernels. It waits until the device is idle.
func (n *ncclComm) abort() error {
	return n.gpu.Do(func() error { return n.library.CommAbort(n.handle) })
}

// destroy frees the communicator after NCCL has sent the last data to other machines.
//
// If the communicator has failed, CommDestroy frees nothing and makes its thread unusable. destroy
// then calls abort on another thread. If CommDestroy does not return within the group's timeout,
// destroy returns a TimeoutError. The thread, the communicator and the CUDA context then remain in
// use until the process ends (see nccl.EndlessDestroy).
func (n *ncclComm) destroy(cfg *driver.GroupConfig) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // not unlocked, so that the thread ends with the goroutine
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
		return n.abort()
	case <-timer.C:
		n.gpu.Hold()
		return &driver.TimeoutError{
			InCall: "destroying NCCL's communicator of group " + cfg.Name(), Waited: timeout,
		}
	}
}

// register registers a segment as a window, on all ranks of the group. The result is 0 if NCCL
// cannot use windows. The caller must hold communicator.mu.
func (n *ncclComm) register(s *memory.Segment) (nccl.Window, error) {
	return gpu.Get(n.gpu, func() (nccl.Window, error) {
		return n.library.WindowRegister(n.handle, s.Address(), s.Bytes())
	})
}

// deregister deregisters a window, unless the abort does. The caller must hold communicator.mu.
func (n *ncclComm) deregister(w nccl.Window) error {
	if n.isAborting.Load() {
		return nil
	}
	return n.gpu.Do(func() error { return n.library.WindowDeregister(n.handle, w) })
}

// releaseCaptured makes NCCL unmap, on other ranks, this rank's memory that destroyed graphs have
// used. NCCL does this only in every 11th NCCL group (calls that NCCL launches together), so
// releaseCaptured runs 11 NCCL groups. Each sends the byte at address, which must be in device
// memory, from this rank to itself. The caller must hold communicator.mu.
func (n *ncclComm) releaseCaptured(rank int, address uintptr) error {
	const ncclGroups = 11
	err := n.gpu.Do(func() error {
		calls := []nccl.Invocation{
			n.library.Send(address, 1, nccl.Uint8, rank, n.handle),
			n.library.Recv(address, 1, nccl.Uint8, rank, n.handle),
		}
		return n.gpu.InternalStreams.Run(n.gpu, func(stream cuda.Stream) error {
			var err error
			for i := 0; i < ncclGroups && err == nil; i++ {
				err = n.queueGroup(calls, stream)
			}
			return err
		})
	})
	if err != nil {
		return fmt.Errorf("releasing the memory of closed graphs: %w", err)
	}
	return nil
}

// queueGroup queues calls as one NCCL group.
func (n *ncclComm) queueGroup(calls []nccl.Invocation, s cuda.Stream) error {
	return n.gpu.Do(func() error { // on one thread, because an NCCL group belongs to its thread
		err := n.library.GroupStart()
		if err != nil {
			return err
		}
		for i := range calls {
			if err == nil {
				err = calls[i].On(s)
			}
		}
		return errors.Join(err, n.library.GroupEnd())
	})
}

// awaitDestroyedGraphs waits until NCCL knows of all graphs that have been destroyed. CUDA
// notifies NCCL in callbacks, which it runs in the order of the destructions on an internal
// thread. awaitDestroyedGraphs therefore destroys an empty graph and waits for the callback of
// this graph. In CUDA versions without such callbacks, it returns immediately.
func awaitDestroyedGraphs(g *gpu.GPU) error {
	notified := make(chan struct{})
	err := g.Do(func() error {
		return g.InternalStreams.Run(g, func(stream cuda.Stream) error {
			err := callAfterEmptyGraph(g, stream, func() { close(notified) })
			if errors.As(err, new(*cuda.MissingError)) {
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

// callAfterEmptyGraph captures and destroys an empty graph. Unless it returns an error, CUDA runs
// callback after the destruction.
func callAfterEmptyGraph(g *gpu.GPU, stream cuda.Stream, callback func()) error {
	if err := g.CUDA.BeginCapture(stream, cuda.CaptureRelaxed); err != nil {
		return err
	}
	graph, err := g.CUDA.EndCapture(stream)
	if err != nil {
		return err
	}
	return errors.Join(g.CUDA.CallAfterGraph(graph, callback), g.CUDA.GraphDestroy(graph))
}

// suspend makes NCCL release the communicator's memory until resume. The caller must hold
// communicator.mu.
func (n *ncclComm) suspend() error {
	err := n.gpu.Do(func() error { return n.library.CommSuspend(n.handle) })
	n.isSuspended = err == nil
	return err
}

// resume undoes suspend and calls afterResume. The caller must hold communicator.mu.
func (n *ncclComm) resume() error {
	if err := n.gpu.Do(func() error { return n.library.CommResume(n.handle) }); err != nil {
		return err
	}
	release := n.afterResume
	n.isSuspended, n.afterResume = false, nil
	if release == nil {
		return nil
	}
	return release()
}

// asyncError returns an error that NCCL has found in the background, or nil.
func (n *ncclComm) asyncError(group string) error {
	err := n.library.AsyncError(n.handle)
	if err == nil || errors.Is(err, nccl.ErrInProgress) {
		return nil
	}
	return fmt.Errorf("group %s: %w", group, err)
}

// waitError returns the error of a wait that ended because ctx is done.
func waitError(ctx context.Context, callText string, begin time.Time) error {
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("%s: %w", callText, context.Cause(ctx))
	}
	return &driver.TimeoutError{
		InCall: callText, Waited: time.Since(begin).Round(time.Millisecond),
	}
}
