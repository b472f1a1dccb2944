package stream

import (
	"slices"
	"sync/atomic"

	"symmem/internal/ranked"
)

// BusyStreams tracks the streams on which a communicator may have unfinished work.
//
// A launch holds its stream's lock from Add until CUDA has accepted the work. A stream whose lock
// is held does not count as idle, so no stream is removed while work is being queued on it.
type BusyStreams struct {
	// recent is the stream that was added last, or nil if AllIdle has been called since then.
	recent atomic.Pointer[Stream]
	// Watching is set while the watcher checks streams. A send on Wake starts the watcher.
	Watching atomic.Bool
	Wake     chan struct{}

	// Windows is set while an NCCL window kernel may be running. Plain is set while any other NCCL
	// kernel may be running. Plain stays set if a stream was closed before its work had completed: a
	// kernel may still be running on the closed stream, although that stream counts as idle.
	Windows, Plain atomic.Bool

	mu         ranked.Mutex[busyMu]
	list       []*Stream // guarded by mu
	closedBusy bool      // whether a stream was closed with unfinished work; guarded by mu
}

// IsAdded reports whether s was the last stream added and the watcher is running. If so, the
// caller can skip Add. Unlike Add, IsAdded is small enough to be inlined into launches.
func (b *BusyStreams) IsAdded(s *Stream) bool { return b.recent.Load() == s && b.Watching.Load() }

// Add adds a stream before work is queued on it, and wakes the watcher.
func (b *BusyStreams) Add(s *Stream) {
	b.mu.Lock()
	if !slices.Contains(b.list, s) {
		b.list = append(b.list, s)
	}
	b.recent.Store(s)
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

// AllIdle removes the streams that have become idle, and reports whether none are left.
func (b *BusyStreams) AllIdle() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	// A launch that has already read recent holds its stream's lock, so Idle returns false for that
	// stream. A later launch waits for mu and adds its stream again.
	b.recent.Store(nil)
	b.list = slices.DeleteFunc(b.list, func(s *Stream) bool {
		idle := s.Idle()
		b.closedBusy = b.closedBusy || idle && s.closedBusy.Load()
		return idle
	})
	if len(b.list) > 0 {
		return false
	}
	b.Windows.Store(false)
	if !b.closedBusy {
		b.Plain.Store(false)
	}
	return true
}

// Idle reports whether all streams, including s, are idle. The caller must hold the lock of s.
func (b *BusyStreams) Idle(s *Stream) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return s.IdleLocked() && !slices.ContainsFunc(b.list, func(other *Stream) bool {
		return other != s && !other.Idle()
	})
}

// Streams lists the streams that may have unfinished work.
func (b *BusyStreams) Streams() []*Stream {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.list)
}
