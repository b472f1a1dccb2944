package gpu

import (
	"context"
	"errors"
	"fmt"

	"symmem/internal/cuda"
	"symmem/internal/ranked"
)

// InternalStreams runs the backend's internal work on streams that are not used for anything else.
// Concurrent calls of Run use different streams, so internal work waits neither for work of
// callers nor for other internal work. The context must be current on threads that call the
// methods.
type InternalStreams struct {
	mu   ranked.Mutex[internalStreamsMu]
	idle []cuda.Stream // streams that no Run is using; guarded by mu
}

// Run calls queue with a stream, and waits until the queued work has completed, even if queue
// fails. queue may wait for other ranks. If the work takes longer than the GPU's timeout, Run
// returns an error, and memory stays mapped until the work has completed.
func (s *InternalStreams) Run(g *GPU, queue func(stream cuda.Stream) error) error {
	stream, err := s.take(g.CUDA)
	if err != nil {
		return err
	}

	queueErr := queue(stream)
	waitErr := PollQueryFor(g.Timeout, func() (bool, error) { return queryStream(g, stream) })
	if waitErr == nil {
		s.put(stream)
		return queueErr
	}

	isTimeout := errors.Is(waitErr, context.DeadlineExceeded)
	if isTimeout {
		abandonStream(g, stream)
	} else { // if queue has failed, the stream may be capturing, and cannot be used again
		_ = g.CUDA.StreamDestroy(stream)
	}

	waitErr = fmt.Errorf("waiting for the backend's internal stream: %w", waitErr)
	return errors.Join(queueErr, waitErr)
}

// take returns an idle stream, or a new one.
func (s *InternalStreams) take(gpu *cuda.Driver) (cuda.Stream, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if last := len(s.idle) - 1; last >= 0 {
		stream := s.idle[last]
		s.idle = s.idle[:last]
		return stream, nil
	}

	return gpu.StreamCreate()
}

// put makes a stream idle.
func (s *InternalStreams) put(stream cuda.Stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.idle = append(s.idle, stream)
}

// queryStream reports whether all work of a stream has completed.
func queryStream(g *GPU, stream cuda.Stream) (isDone bool, err error) {
	err = g.Query(func(gpu *cuda.Driver) (err error) {
		isDone, err = gpu.StreamQuery(stream)
		return err
	})
	return isDone, err
}

// abandonStream keeps memory mapped until the stream's work has completed or failed. The stream is
// neither used again nor destroyed.
func abandonStream(g *GPU, stream cuda.Stream) {
	g.AddUnfinished(func() bool {
		isDone, err := queryStream(g, stream)
		return isDone || err != nil
	})
}

// Zero fills device memory with zeros and waits for completion.
func (s *InternalStreams) Zero(g *GPU, address uintptr, bytes int64) error {
	return s.Run(g, func(stream cuda.Stream) error {
		const value = 0
		return g.CUDA.MemsetD8Async(address, value, bytes, stream)
	})
}

// Close destroys the idle streams.
func (s *InternalStreams) Close(gpu *cuda.Driver) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, stream := range s.idle {
		errs = append(errs, gpu.StreamDestroy(stream))
	}

	s.idle = nil
	return errors.Join(errs...)
}
