package nccl

import (
	"errors"
	"fmt"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/internal/cuda"
	"symmem/internal/nccl"
)

// awaitDestroyedGraphs waits until CUDA has notified NCCL of all destroyed graphs. CUDA sends
// notifications in order, so awaitDestroyedGraphs waits for the notification of an empty graph.
func awaitDestroyedGraphs(g *gpu.GPU) error {
	notified := make(chan struct{})
	err := g.Do(func() error {
		return g.InternalStreams.Run(g, func(stream cuda.Stream) error {
			err := callAfterEmptyGraph(g, stream, func() { close(notified) })
			if errors.As(err, new(*cuda.MissingError)) { // there is no notification to wait for
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

// callAfterEmptyGraph creates and destroys an empty graph. CUDA then runs callback.
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

// unmapCaptured makes other ranks unmap memory of destroyed graphs. NCCL does that in every 11th
// NCCL group, so unmapCaptured queues 11 groups, in which this rank sends the byte at address to
// itself. The caller must hold communicator.mu.
func (n *ncclComm) unmapCaptured(rank int, address uintptr) error {
	const unmapInterval = 11
	const byteCount = 1
	err := n.gpu.Do(func() error {
		calls := []nccl.Invocation{
			n.library.Send(address, byteCount, nccl.Uint8, rank, n.handle),
			n.library.Recv(address, byteCount, nccl.Uint8, rank, n.handle),
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
