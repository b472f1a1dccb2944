package stream

import (
	"slices"
	"sync/atomic"

	"symmem/internal/ranked"
)

// BusyStreams lists the streams on which a communicator may have unfinished work. A goroutine, the
// watcher, removes idle ones. A launch holds its stream's lock from Add until CUDA has accepted the
// work, because a locked stream does not count as idle.
type BusyStreams struct {
	lastAdded atomic.Pointer[Stream] // nil after AllIdle
	Watching  atomic.Bool            // the watcher is running
	Wake      chan struct{}          // a send starts the watcher

	// WindowKernels is set while NCCL kernels that access windows (registered memory) may be
	// running, and OtherKernels while others may be. OtherKernels stays set after a stream was
	// closed with unfinished work.
	WindowKernels, OtherKernels atomic.Bool

	mu              ranked.Mutex[busyMu]
	streams         []*Stream // guarded by mu
	closedWhileBusy bool      // guarded by mu
}

// IsAdded reports whether Add is unnecessary. It is small enough to be inlined.
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
	if !b.Watching.Load() {
		b.Watching.Store(true)
		select {
		case b.Wake <- struct{}{}:
		default:
		}
	}
}

// AllIdle removes idle streams, and reports whether none are left.
func (b *BusyStreams) AllIdle() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	// A launch that has already read lastAdded holds its stream's lock, so the stream is kept.
	b.lastAdded.Store(nil)
	b.streams = slices.DeleteFunc(b.streams, func(s *Stream) bool {
		idle := s.Idle()
		b.closedWhileBusy = b.closedWhileBusy || idle && s.closedWhileBusy.Load()
		return idle
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

// Idle reports whether all streams, including s, are idle. The caller must hold the lock of s.
func (b *BusyStreams) Idle(s *Stream) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return s.IdleLocked() && !slices.ContainsFunc(b.streams, func(other *Stream) bool {
		return other != s && !other.Idle()
	})
}

// Streams lists streams that may have unfinished work.
func (b *BusyStreams) Streams() []*Stream {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.streams)
}
