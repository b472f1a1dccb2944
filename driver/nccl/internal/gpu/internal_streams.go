package gpu

import (
	"context"
	"errors"
	"fmt"

	"symmem/internal/cuda"
	"symmem/internal/ranked"
)

// InternalStreams is a pool of streams for the backend's internal work. Each concurrent Run has its
// own stream, so internal work never waits for user streams or other internal work. The methods
// require a current context.
type InternalStreams struct {
	mu   ranked.Mutex[internalStreamsMu]
	idle []cuda.Stream // guarded by mu
}

// Run waits for the work that queue adds to a stream, even if queue returns an error. queue itself
// may block. If the work takes longer than g.Timeout, Run returns an error, and g keeps its memory
// mapped until the work has completed.
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
	} else {
		// The stream may be left in a capture. waitErr already reports the failure.
		_ = g.CUDA.StreamDestroy(stream)
	}

	waitErr = fmt.Errorf("waiting for the backend's internal stream: %w", waitErr)
	return errors.Join(queueErr, waitErr)
}

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

func (s *InternalStreams) put(stream cuda.Stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.idle = append(s.idle, stream)
}

func queryStream(g *GPU, stream cuda.Stream) (isDone bool, err error) {
	err = g.Query(func(gpu *cuda.Driver) (err error) {
		isDone, err = gpu.StreamQuery(stream)
		return err
	})
	return isDone, err
}

// abandonStream leaks a stream, and keeps memory mapped until its work has completed or failed.
func abandonStream(g *GPU, stream cuda.Stream) {
	g.AddUnfinished(func() bool {
		isDone, err := queryStream(g, stream)
		return isDone || err != nil
	})
}

// Zero clears device memory and waits for completion.
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
