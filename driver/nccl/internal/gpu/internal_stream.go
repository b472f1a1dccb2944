package gpu

import (
	"context"
	"errors"
	"fmt"

	"symmem/internal/cuda"
	"symmem/internal/ranked"
)

// InternalStream runs internal work, so that it never waits for work of callers. The context must
// be current on threads that call its methods.
type InternalStream struct {
	mu     ranked.Mutex[internalStreamMu] // guards the following fields
	stream cuda.Stream
}

// Run calls queue and waits until the queued work has completed. After the GPU's timeout, it
// abandons the stream and keeps memory mapped (GPU.AddUnfinished).
func (s *InternalStream) Run(g *GPU, queue func(stream cuda.Stream) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var err error
	if s.stream == 0 {
		s.stream, err = g.CUDA.StreamCreate()
	}
	if err == nil {
		err = queue(s.stream)
	}
	if err != nil {
		return err
	}
	err = PollQueryFor(g.Timeout, func() (bool, error) { return g.CUDA.StreamQuery(s.stream) })
	if errors.Is(err, context.DeadlineExceeded) {
		abandoned := s.stream
		s.stream = 0
		g.AddUnfinished(func() bool {
			var done bool
			err := g.With(func(gpu *cuda.Driver) (err error) {
				done, err = gpu.StreamQuery(abandoned)
				return err
			})
			return done || err != nil
		})
	}
	if err != nil {
		return fmt.Errorf("waiting for the backend's internal stream: %w", err)
	}
	return nil
}

// Zero fills device memory with zeros and waits for completion.
func (s *InternalStream) Zero(g *GPU, address uintptr, bytes int64) error {
	return s.Run(g, func(stream cuda.Stream) error {
		return g.CUDA.MemsetD8Async(address, 0, bytes, stream)
	})
}

// Close destroys the stream.
func (s *InternalStream) Close(gpu *cuda.Driver) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stream == 0 {
		return nil
	}
	stream := s.stream
	s.stream = 0
	return gpu.StreamDestroy(stream)
}
