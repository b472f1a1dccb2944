package stream

import (
	"slices"
	"sync/atomic"

	"symmem/internal/ranked"
)

// BusyStreams lists the streams on which a communicator may have unfinished work. Each launch adds
// its stream. A watcher goroutine calls AllIdle to remove idle streams, and sleeps while the list
// is empty.
//
// A launch must hold its stream's lock from IsAdded until CUDA has accepted the work, because
// AllIdle keeps a locked stream in the list.
type BusyStreams struct {
	lastAdded atomic.Pointer[Stream] // cache for IsAdded
	Watching  atomic.Bool            // the watcher is awake or about to wake
	Wake      chan struct{}          // wakes the watcher; capacity 1

	WindowKernels atomic.Bool // NCCL kernels that access registered memory may be running
	OtherKernels  atomic.Bool // other NCCL kernels may be running; stays set if closedWhileBusy is set

	mu              ranked.Mutex[busyMu] // guards the following fields
	streams         []*Stream
	closedWhileBusy bool // a stream was closed with unfinished work and removed
}

// IsAdded returns true if Add is unnecessary. It checks only the last added stream, so that the
// compiler can inline it.
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

// AllIdle removes idle streams. If none are left, it clears WindowKernels and OtherKernels, and
// returns true.
func (b *BusyStreams) AllIdle() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	// Later launches must add their streams again. A launch that has already called IsAdded holds the
	// lock of its stream, so Idle returns false below.
	b.lastAdded.Store(nil)
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
