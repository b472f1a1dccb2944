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

// ncclComm wraps a group's ncclComm_t. Its methods can wait for other ranks without a deadline,
// except for CommDestroy in destroy. Callers of register and deregister must hold communicator.mu.
type ncclComm struct {
	gpu        *gpu.GPU
	library    *nccl.Library
	handle     nccl.Comm
	isAborting atomic.Bool // the abort frees the windows
	// mayMapCaptured is set once plain calls have been captured: NCCL may have mapped their memory on
	// other ranks.
	mayMapCaptured atomic.Bool
	// communicator.mu guards the following fields.
	isSuspended bool
	// afterResume is a releaseCaptured that must wait for resume, or nil. Kernels of a suspended
	// communicator would destroy the CUDA context.
	afterResume func() error
}

// abort waits until the device is idle.
func (n *ncclComm) abort() error {
	return n.gpu.Do(func() error { return n.library.CommAbort(n.handle) })
}

// destroy frees the communicator after NCCL has sent the last data to other machines. If the
// communicator has failed, CommDestroy frees nothing and makes its thread unusable, so destroy then
// calls abort on another thread. If CommDestroy does not return within the group's timeout, destroy
// returns a TimeoutError; a thread, the communicator and the CUDA context remain in use (see
// nccl.EndlessDestroy).
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

// releaseCaptured makes NCCL unmap, on other ranks, this rank's memory that destroyed graphs have
// used. NCCL does that only in every 11th group of calls, so releaseCaptured runs 11 groups. Each
// sends one byte to this rank itself, in place. address must be in device memory. The caller must
// hold communicator.mu.
func (n *ncclComm) releaseCaptured(rank int, address uintptr) error {
	const groups = 11
	err := n.gpu.Do(func() error {
		calls := []nccl.Invocation{
			n.library.Send(address, 1, nccl.Uint8, rank, n.handle),
			n.library.Recv(address, 1, nccl.Uint8, rank, n.handle),
		}
		return n.gpu.InternalStreams.Run(n.gpu, func(stream cuda.Stream) error {
			var err error
			for i := 0; i < groups && err == nil; i++ {
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

// queueGroup queues calls as one group of NCCL calls.
func (n *ncclComm) queueGroup(calls []nccl.Invocation, s cuda.Stream) error {
	return n.gpu.Do(func() error { // an NCCL group belongs to one thread
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

// awaitDestroyedGraphs waits until CUDA has told NCCL which graphs have been destroyed. CUDA runs
// these callbacks in order, on an internal thread. This function therefore destroys an empty graph
// and waits for its callback.
func awaitDestroyedGraphs(g *gpu.GPU) error {
	told := make(chan struct{})
	err := g.Do(func() error {
		return g.InternalStreams.Run(g, func(stream cuda.Stream) error {
			err := callAfterEmptyGraph(g, stream, func() { close(told) })
			if errors.As(err, new(*cuda.MissingError)) {
				close(told)
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
	case <-told:
		return nil
	case <-timer.C:
		return fmt.Errorf("CUDA has not reported the end of closed graphs for %v, so NCCL may still "+
			"use their memory: %w", g.Timeout, driver.ErrBusy)
	}
}

// callAfterEmptyGraph captures and destroys a graph. CUDA then makes the call, unless
// callAfterEmptyGraph fails.
func callAfterEmptyGraph(g *gpu.GPU, stream cuda.Stream, call func()) error {
	if err := g.CUDA.BeginCapture(stream, cuda.CaptureRelaxed); err != nil {
		return err
	}
	graph, err := g.CUDA.EndCapture(stream)
	if err != nil {
		return err
	}
	return errors.Join(g.CUDA.CallAfterGraph(graph, call), g.CUDA.GraphDestroy(graph))
}

// suspend and resume require communicator.mu.
func (n *ncclComm) suspend() error {
	err := n.gpu.Do(func() error { return n.library.CommSuspend(n.handle) })
	n.isSuspended = err == nil
	return err
}

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
