package stream

import (
	"slices"
	"sync/atomic"

	"symmem/internal/ranked"
)

// BusyStreams lists the streams on which a communicator may have unfinished work. Each launch of a
// call on stream A adds A, unless IsAdded shows that this is unnecessary. A goroutine, the watcher,
// calls AllIdle at intervals, which removes A once A is idle. When the list is empty, the watcher
// stops until Add wakes it.
//
// A launch must hold the lock of A from IsAdded until CUDA has accepted the work. During this time,
// A looks idle to CUDA. But AllIdle does not remove A, because a locked stream counts as busy.
type BusyStreams struct {
	lastAdded atomic.Pointer[Stream] // stream of the last Add, or nil after AllIdle
	Watching  atomic.Bool            // whether the watcher is running or about to run
	Wake      chan struct{}          // a send starts the watcher; has room for one

	// WindowKernels is set while NCCL kernels that access windows (memory registered with NCCL) may
	// be running.
	WindowKernels atomic.Bool
	// OtherKernels is set while other NCCL kernels may be running. If a stream has been closed with
	// unfinished work, it stays set forever.
	OtherKernels atomic.Bool

	mu              ranked.Mutex[busyMu] // guards the following fields
	streams         []*Stream            // the list
	closedWhileBusy bool                 // a removed stream was closed with unfinished work
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

// Streams returns the streams in the list.
func (b *BusyStreams) Streams() []*Stream {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.streams)
}

// AllIdle removes idle streams, and reports whether none are left. In this case, it also clears
// WindowKernels and OtherKernels.
func (b *BusyStreams) AllIdle() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	// From now on, IsAdded returns false, so that launches add removed streams again. If IsAdded has
	// just returned true in a launch, that launch holds its stream's lock, so the stream stays.
	b.lastAdded.Store(nil)
	b.streams = slices.DeleteFunc(b.streams, func(s *Stream) bool {
		isIdle := s.Idle()
		if isIdle && s.closedWhileBusy.Load() {
			b.closedWhileBusy = true // a closed stream counts as idle
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
