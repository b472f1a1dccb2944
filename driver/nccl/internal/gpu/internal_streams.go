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

// Run calls queue to add work to a stream. queue may block. Run then waits for the work, even if
// queue returns an error. If the work takes longer than g.Timeout, Run returns an error, and memory
// stays mapped until the work has ended.
func (s *InternalStreams) Run(g *GPU, queue func(stream cuda.Stream) error) error {
	stream, err := s.take(g.CUDA)
	if err != nil {
		return err
	}

	queueErr := queue(stream)
	waitErr := PollQueryFor(g.Timeout, func() (bool, error) { return queryStream(g, stream) })
	switch {
	case waitErr == nil:
		s.put(stream)
		return queueErr
	case errors.Is(waitErr, context.DeadlineExceeded):
		abandonStream(g, stream)
	default: // the query has failed
		_ = g.CUDA.StreamDestroy(stream)
	}

	waitErr = fmt.Errorf("waiting for the backend's internal stream: %w", waitErr)
	return errors.Join(queueErr, waitErr)
}

func (s *InternalStreams) take(api *cuda.Driver) (cuda.Stream, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if last := len(s.idle) - 1; last >= 0 {
		stream := s.idle[last]
		s.idle = s.idle[:last]
		return stream, nil
	}

	return api.StreamCreate()
}

func (s *InternalStreams) put(stream cuda.Stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.idle = append(s.idle, stream)
}

func queryStream(g *GPU, stream cuda.Stream) (isDone bool, err error) {
	err = g.Query(func(api *cuda.Driver) (queryErr error) {
		isDone, queryErr = api.StreamQuery(stream)
		return queryErr
	})
	return isDone, err
}

// abandonStream leaks a stream. The stream's work is unfinished until it completes or fails.
func abandonStream(g *GPU, stream cuda.Stream) {
	g.AddUnfinished(func() bool {
		isDone, err := queryStream(g, stream)
		return isDone || err != nil
	})
}

// Zero clears device memory and waits for completion.
func (s *InternalStreams) Zero(g *GPU, address uintptr, bytes int64) error {
	return s.Run(g, func(stream cuda.Stream) error {
		const zero = 0
		return g.CUDA.MemsetD8Async(address, zero, bytes, stream)
	})
}

// Close destroys the idle streams.
func (s *InternalStreams) Close(api *cuda.Driver) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, stream := range s.idle {
		errs = append(errs, api.StreamDestroy(stream))
	}

	s.idle = nil
	return errors.Join(errs...)
}
