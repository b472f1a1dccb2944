package nccl

import (
	"fmt"

	"symmem/internal/cuda"
)

// Host runs a function in stream order, on a thread of CUDA. A panic in it becomes the stream's
// error.
func (s *stream) Host(work func()) error {
	run := func() {
		defer func() {
			if r := recover(); r != nil {
				s.fail(fmt.Errorf("work on a stream panicked: %v", r))
			}
		}()
		work()
	}
	return s.submit(func() error {
		if s.capture != nil {
			return s.captureHost(cuda.NewHostFunc(run))
		}
		f := cuda.NewHostFuncOnce(run)
		err := s.device.cuda.LaunchHostFunc(s.handle, f)
		if err != nil {
			f.Release()
		}
		return err
	})
}

// captureHost records a function, which the graph keeps. s.mu is held.
func (s *stream) captureHost(f cuda.HostFunc) error {
	s.capture.functions = append(s.capture.functions, f)
	return s.device.cuda.LaunchHostFunc(s.handle, f)
}
