package stream

import (
	"slices"
	"sync/atomic"

	"symmem/internal/ranked"
)

// BusyStreams lists the streams on which a communicator may have unfinished work. Each launch adds
// its stream. A watcher goroutine calls RemoveIdle, and sleeps while the list is empty.
//
// A launch must hold the stream's lock from IsAdded until CUDA has accepted the work. Stream.Idle
// then returns false on other goroutines, and RemoveIdle keeps the stream.
type BusyStreams struct {
	lastAdded atomic.Pointer[Stream] // cache for IsAdded
	Watching  atomic.Bool            // the watcher is awake or about to wake
	Wake      chan struct{}          // wakes the watcher; capacity 1

	WindowKernels atomic.Bool // NCCL kernels that access registered memory may be running
	OtherKernels  atomic.Bool // other NCCL kernels may be running

	mu              ranked.Mutex[busyMu] // guards the following fields
	streams         []*Stream
	closedWhileBusy bool // a removed stream was closed with unfinished work
}

// IsAdded reports whether s is the last added stream and the watcher is awake. If so, Add is
// unnecessary.
func (b *BusyStreams) IsAdded(s *Stream) bool {
	return b.lastAdded.Load() == s && b.Watching.Load()
}

// Add adds a stream before work is queued on it, and wakes the watcher.
func (b *BusyStreams) Add(s *Stream) {
	b.mu.Lock()
	if !slices.Contains(b.streams, s) {
		b.streams = append(b.streams, s)
	}

	b.lastAdded.Store(s)
	b.mu.Unlock()
	b.WakeWatcher()
}

// WakeWatcher wakes the watcher if it sleeps.
func (b *BusyStreams) WakeWatcher() {
	if b.Watching.Load() {
		return
	}

	b.Watching.Store(true)
	select {
	case b.Wake <- struct{}{}:
	default: // an earlier send will wake the watcher
	}
}

// Streams returns a copy of the list.
func (b *BusyStreams) Streams() []*Stream {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.streams)
}

// RemoveIdle removes idle streams and reports whether none are left. If so, it clears
// WindowKernels. It also clears OtherKernels, unless a closed stream may still run kernels.
func (b *BusyStreams) RemoveIdle() (allIdle bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lastAdded.Store(nil) // later launches must add their streams again
	b.streams = slices.DeleteFunc(b.streams, func(s *Stream) bool {
		isIdle := s.Idle() // true for any closed stream
		if isIdle && s.closedWhileBusy.Load() {
			b.closedWhileBusy = true
		}

		return isIdle
	})
	if len(b.streams) > 0 {
		return false
	}

	b.WindowKernels.Store(false)
	if !b.closedWhileBusy {
		b.OtherKernels.Store(false)
	}

	return true
}

// Idle reports whether s and all listed streams are idle. The caller must hold s.Mu.
func (b *BusyStreams) Idle(s *Stream) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !s.IdleLocked() {
		return false
	}

	isOtherBusy := func(other *Stream) bool { return other != s && !other.Idle() }
	return !slices.ContainsFunc(b.streams, isOtherBusy)
}
