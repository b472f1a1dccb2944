package stream

import (
	"slices"
	"sync/atomic"

	"symmem/internal/ranked"
)

// BusyStreams lists the streams on which a communicator may have unfinished work. Each launch adds
// its stream. A watcher goroutine polls AllIdle, which removes idle streams, and sleeps while the
// list is empty.
//
// A launch must hold its stream's lock from IsAdded until CUDA has accepted the work. AllIdle keeps
// locked streams, even if they still look idle to CUDA.
type BusyStreams struct {
	lastAdded atomic.Pointer[Stream] // cache for IsAdded
	Watching  atomic.Bool            // the watcher is running or about to run
	Wake      chan struct{}          // wakes the watcher; capacity 1

	// WindowKernels is set while NCCL kernels that access registered memory may be running.
	WindowKernels atomic.Bool
	// OtherKernels is set while other NCCL kernels may be running. It is never cleared after
	// closedWhileBusy.
	OtherKernels atomic.Bool

	mu              ranked.Mutex[busyMu] // guards the following fields
	streams         []*Stream
	closedWhileBusy bool // a removed stream was closed with unfinished work
}

// IsAdded reports whether Add is unnecessary. It may return false for a stream in the list, so that
// it is small enough to be inlined.
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

// WakeWatcher starts the watcher unless it is running.
func (b *BusyStreams) WakeWatcher() {
	if b.Watching.Load() {
		return
	}

	b.Watching.Store(true)
	select {
	case b.Wake <- struct{}{}:
	default: // an earlier send will start the watcher
	}
}

// Streams returns a copy of the list.
func (b *BusyStreams) Streams() []*Stream {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.streams)
}

// AllIdle removes idle streams. If none are left, it clears WindowKernels and OtherKernels, and
// returns true.
func (b *BusyStreams) AllIdle() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	// First make later launches add their streams again. A launch for which IsAdded has already
	// returned true holds the lock of its stream, which is therefore not idle.
	b.lastAdded.Store(nil)
	b.streams = slices.DeleteFunc(b.streams, func(s *Stream) bool {
		isIdle := s.Idle() // true for a closed stream, even with unfinished work
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

// Idle reports whether s and all streams in the list are idle. The caller must hold the lock of s.
func (b *BusyStreams) Idle(s *Stream) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !s.IdleLocked() {
		return false
	}

	isOtherBusy := func(other *Stream) bool { return other != s && !other.Idle() }
	return !slices.ContainsFunc(b.streams, isOtherBusy)
}
