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

// An ncclComm wraps a group's communicator of NCCL. The group can register memory with it as a
// window. NCCL's kernels can then access the memory from all ranks.
//
// A CUDA graph can contain calls to NCCL whose kernels do not access windows, called plain calls.
// NCCL may map the memory of these calls on other ranks. It unmaps the memory there some time after
// the graph has been destroyed. releaseCaptured makes it do so now, so that the memory can be
// freed.

// ncclComm is a communicator of NCCL. All methods that call NCCL, except destroy, can wait for
// other ranks without a time limit.
type ncclComm struct {
	gpu     *gpu.GPU
	library *nccl.Library
	handle  nccl.Comm
	// isAborting is set before abort or destroy is called. Both free all windows, so deregister
	// does nothing if it is set.
	isAborting atomic.Bool
	// mayMapCaptured is set once a graph contains plain calls.
	mayMapCaptured atomic.Bool

	// communicator.mu guards the following fields.

	isSuspended bool
	// afterResume is nil, or a function that calls releaseCaptured after resume. While the
	// communicator is suspended, releaseCaptured must wait: its kernels would destroy the CUDA
	// context.
	afterResume func() error
}

// register registers a segment as a window. All ranks of the group must call it together. The
// result is 0 if NCCL cannot use windows. The caller must hold communicator.mu.
func (n *ncclComm) register(s *memory.Segment) (nccl.Window, error) {
	return gpu.Get(n.gpu, func() (nccl.Window, error) {
		return n.library.WindowRegister(n.handle, s.Address(), s.Bytes())
	})
}

// deregister deregisters a window, unless abort or destroy frees all windows. The caller must hold
// communicator.mu.
func (n *ncclComm) deregister(w nccl.Window) error {
	if n.isAborting.Load() {
		return nil
	}

	return n.gpu.Do(func() error { return n.library.WindowDeregister(n.handle, w) })
}

// abort ends the communicator's kernels, waits until the device is idle, and frees the
// communicator.
func (n *ncclComm) abort() error {
	return n.gpu.Do(func() error { return n.library.CommAbort(n.handle) })
}

// destroy frees the communicator after NCCL has sent the last data to other machines.
//
// If CommDestroy does not return within the group's timeout, destroy returns a TimeoutError. The
// thread, the communicator and the CUDA context remain in use until the process ends (see
// nccl.EndlessDestroy).
func (n *ncclComm) destroy(cfg *driver.GroupConfig) error {
	result := make(chan error, 1)
	go func() {
		// If the communicator has failed, CommDestroy makes its thread unusable. The thread ends with
		// this goroutine, because it is not unlocked.
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

		return n.abort() // because CommDestroy has freed nothing
	case <-timer.C:
		n.gpu.Hold() // keeps the CUDA context, which CommDestroy still uses
		return &driver.TimeoutError{
			InCall: "destroying NCCL's communicator of group " + cfg.Name(), Waited: timeout,
		}
	}
}

// queueGroup queues calls as one NCCL group, which NCCL launches together. After an error, it
// queues no more calls, but ends the NCCL group.
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

		endErr := n.library.GroupEnd()
		return errors.Join(err, endErr)
	})
}

// releaseCaptured makes NCCL unmap this rank's memory on other ranks if only destroyed graphs have
// used it in plain calls. The caller must hold communicator.mu.
//
// NCCL unmaps such memory only in every 11th NCCL group, so releaseCaptured runs 11 NCCL groups.
// Each sends one byte from this rank to itself. address is the address of the byte in GPU memory.
func (n *ncclComm) releaseCaptured(rank int, address uintptr) error {
	const ncclGroups = 11
	const count = 1
	err := n.gpu.Do(func() error {
		calls := []nccl.Invocation{
			n.library.Send(address, count, nccl.Uint8, rank, n.handle),
			n.library.Recv(address, count, nccl.Uint8, rank, n.handle),
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

// awaitDestroyedGraphs waits until NCCL knows of all graphs that have been destroyed. In CUDA
// versions that do not notify NCCL, it returns immediately.
//
// CUDA notifies NCCL by a callback for each graph. It runs the callbacks on an internal thread, in
// the order in which the graphs are destroyed. awaitDestroyedGraphs therefore destroys an empty
// graph and waits for the callback of that graph, which is the last one.
func awaitDestroyedGraphs(g *gpu.GPU) error {
	notified := make(chan struct{})
	err := g.Do(func() error {
		return g.InternalStreams.Run(g, func(stream cuda.Stream) error {
			err := callAfterEmptyGraph(g, stream, func() { close(notified) })
			if errors.As(err, new(*cuda.MissingError)) { // this CUDA version has no callbacks
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

	callErr := g.CUDA.CallAfterGraph(graph, callback)
	destroyErr := g.CUDA.GraphDestroy(graph)
	return errors.Join(callErr, destroyErr)
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

	n.isSuspended = false
	release := n.afterResume
	n.afterResume = nil
	if release == nil {
		return nil
	}

	return release()
}

// asyncError returns an error that NCCL has found in the background, or nil. group is the group's
// name for the error.
func (n *ncclComm) asyncError(group string) error {
	err := n.library.AsyncError(n.handle)
	if err == nil || errors.Is(err, nccl.ErrInProgress) {
		return nil
	}

	return fmt.Errorf("group %s: %w", group, err)
}

// waitError returns the error of a wait that ended because ctx is done: a TimeoutError after a
// deadline, and otherwise the cause of ctx. callText names the call that waited since begin.
func waitError(ctx context.Context, callText string, begin time.Time) error {
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("%s: %w", callText, context.Cause(ctx))
	}

	return &driver.TimeoutError{
		InCall: callText, Waited: time.Since(begin).Round(time.Millisecond),
	}
}
