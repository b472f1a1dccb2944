package stream

import (
	"slices"
	"sync/atomic"

	"symmem/internal/ranked"
)

// BusyStreams lists the streams on which a communicator may have unfinished work. A goroutine, the
// watcher, removes idle streams.
//
// A launch must hold its stream's lock from Add until CUDA has accepted the work. During this time,
// the stream looks idle to CUDA. The watcher keeps it anyway, because a locked stream counts as
// busy.
type BusyStreams struct {
	lastAdded atomic.Pointer[Stream] // stream of the last Add, or nil after AllIdle
	Watching  atomic.Bool            // whether the watcher is running or about to run
	Wake      chan struct{}          // a send starts the watcher; has room for one

	// WindowKernels is set while NCCL kernels that access windows (memory registered with NCCL) may
	// be running.
	WindowKernels atomic.Bool
	// OtherKernels is set while other kernels may be running. If a stream has been closed with
	// unfinished work, it stays set forever.
	OtherKernels atomic.Bool

	mu              ranked.Mutex[busyMu] // guards the following fields
	streams         []*Stream
	closedWhileBusy bool // a removed stream was closed with unfinished work
}

// IsAdded reports whether s is known to be in the list, so that Add is unnecessary. The result can
// be false for a stream in the list. It is small enough to be inlined.
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

// AllIdle removes idle streams, and reports whether none are left. In this case, it also clears
// WindowKernels and OtherKernels.
func (b *BusyStreams) AllIdle() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	// A removed stream must be added again. If a launch has already read lastAdded, it holds its
	// stream's lock, so the stream is not removed.
	b.lastAdded.Store(nil)
	b.streams = slices.DeleteFunc(b.streams, func(s *Stream) bool {
		idle := s.Idle()
		if idle && s.closedWhileBusy.Load() {
			b.closedWhileBusy = true
		}

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

// Streams returns the streams that may have unfinished work.
func (b *BusyStreams) Streams() []*Stream {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.streams)
}
