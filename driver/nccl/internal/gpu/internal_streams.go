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
	idle []cuda.Stream // guarded by mu
}

// Run calls queue, which may wait for other ranks, and waits until the queued work has completed,
// even if queue fails. After the GPU's timeout, it abandons the stream, and memory stays mapped
// until the work has completed.
func (s *InternalStreams) Run(g *GPU, queue func(stream cuda.Stream) error) error {
	stream, err := s.take(g.CUDA)
	if err != nil {
		return err
	}
	queueErr := queue(stream)
	err = PollQueryFor(g.Timeout, func() (done bool, err error) {
		err = g.Query(func(gpu *cuda.Driver) error { done, err = gpu.StreamQuery(stream); return err })
		return done, err
	})
	switch {
	case err == nil:
		s.put(stream)
	case errors.Is(err, context.DeadlineExceeded):
		abandonStream(g, stream)
	default: // if queue failed, the stream may be capturing
		_ = g.CUDA.StreamDestroy(stream)
	}
	if err != nil {
		err = fmt.Errorf("waiting for the backend's internal stream: %w", err)
	}
	return errors.Join(queueErr, err)
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

func abandonStream(g *GPU, stream cuda.Stream) {
	g.AddUnfinished(func() bool {
		var done bool
		err := g.Query(func(gpu *cuda.Driver) (err error) {
			done, err = gpu.StreamQuery(stream)
			return err
		})
		return done || err != nil
	})
}

// Zero fills device memory with zeros and waits for completion.
func (s *InternalStreams) Zero(g *GPU, address uintptr, bytes int64) error {
	return s.Run(g, func(stream cuda.Stream) error {
		return g.CUDA.MemsetD8Async(address, 0, bytes, stream)
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
