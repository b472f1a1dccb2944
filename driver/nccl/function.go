package nccl

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"symmem/internal/cuda"
	"symmem/internal/dl"
	"symmem/internal/ranked"
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
type word struct{ at *uint32 }

func (w *word) set(value uint32) { atomic.StoreUint32(w.at, value) }

func (w *word) value() uint32 { return atomic.LoadUint32(w.at) }

func (w *word) address() uintptr { return uintptr(unsafe.Pointer(w.at)) }

// words hands out words of pages that the device can read.
type words struct {
	mu    ranked.Mutex[wordsMu]
	pages []uintptr // guarded by mu
	free  []*word   // guarded by mu
}

// pageBytes is what is asked of the host at once.
const pageBytes = 4096

// take hands out a word that is 0. It is called on a thread of the device.
func (w *words) take(driver *cuda.Driver) (*word, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.free) == 0 {
		page, err := driver.MemAllocHost(pageBytes)
		if err != nil {
			return nil, err
		}
		w.pages = append(w.pages, page)
		memory := unsafe.Slice((*uint32)(unsafe.Pointer(&dl.Bytes(page, pageBytes)[0])), pageBytes/4)
		for i := range memory {
			w.free = append(w.free, &word{&memory[i]})
		}
	}
	last := len(w.free) - 1
	taken := w.free[last]
	w.free = w.free[:last]
	taken.set(0)
	return taken, nil
}

// put takes words back for which no stream waits any more.
func (w *words) put(words ...*word) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.free = append(w.free, words...)
}

func (w *words) close(driver *cuda.Driver) (err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, page := range w.pages {
		if e := driver.MemFreeHost(page); err == nil {
			err = e
		}
	}
	w.pages, w.free = nil, nil
	return err
}
