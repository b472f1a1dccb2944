package nccl

import (
	"fmt"
	"sync/atomic"

	"symmem/internal/cuda"
)

// CUDA runs the host functions of a whole context on one thread, so one that takes its time would
// hold up every stream. Ours therefore only start a goroutine, and the stream waits for a word of
// host memory that the goroutine writes when the work is done.

// Host runs a function in stream order. A panic in it becomes the stream's error.
func (s *stream) Host(work func()) error {
	return s.give(func() error {
		if s.capture != nil {
			return s.captureHost(work)
		}
		if s.word == nil {
			var err error
			if s.word, err = s.device.words.take(s.device.cuda); err != nil {
				return err
			}
		}
		s.functions++
		// The word is this stream's of now: one that was given up has another one later.
		word, turn := s.word, s.functions
		f := cuda.NewHostFuncOnce(func() { go s.run(work, word, turn) })
		if err := s.device.cuda.LaunchHostFunc(s.handle, f); err != nil {
			f.Release()
			return err
		}
		return s.device.cuda.StreamWaitValue(s.handle, word.address(), turn,
			cuda.WaitGreaterOrEqual)
	})
}

// captureHost records a function, which the graph keeps. Launches of one graph come one after the
// other, so the word can be taken back at the beginning of each. s.mu is held.
func (s *stream) captureHost(work func()) error {
	word, err := s.device.words.take(s.device.cuda)
	if err != nil {
		return err
	}
	s.capture.words = append(s.capture.words, word)
	f := cuda.NewHostFunc(func() {
		word.set(0)
		go s.run(work, word, 1)
	})
	s.capture.functions = append(s.capture.functions, f)
	if err := s.device.cuda.LaunchHostFunc(s.handle, f); err != nil {
		return err
	}
	return s.device.cuda.StreamWaitValue(s.handle, word.address(), 1, cuda.WaitEqual)
}

// run does the work of a host function and lets its stream go on.
func (s *stream) run(work func(), done *word, value uint32) {
	s.device.order.Load()
	defer func() {
		if r := recover(); r != nil {
			s.fail(fmt.Errorf("work on a stream panicked: %v", r))
		}
		s.device.order.Add(1)
		done.set(value)
	}()
	work()
}

// word is a word of host memory for which streams can wait.
type word uint32

func (w *word) set(value uint32) { atomic.StoreUint32((*uint32)(w), value) }

func (w *word) value() uint32 { return atomic.LoadUint32((*uint32)(w)) }

func (w *word) address() uintptr { return addressOf(w) }
