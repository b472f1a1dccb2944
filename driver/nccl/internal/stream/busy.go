package stream

import (
	"slices"
	"sync/atomic"

	"symmem/internal/ranked"
)

// BusyStreams tracks the streams that may have unfinished work of a communicator.
//
// A launch holds its stream's lock from Note until CUDA has the work, and a stream whose lock is
// held does not count as idle. So no stream is dropped while it is getting work.
type BusyStreams struct {
	// recent is the stream of the last Note, as long as it is listed.
	recent atomic.Pointer[Stream]
	// Watching reports whether the watcher is checking streams; a send on Wake starts it.
	Watching atomic.Bool
	Wake     chan struct{}

	// Windows reports whether a window kernel of NCCL may be unfinished, and Plain whether another
	// NCCL kernel may be. Plain stays set if a stream was closed before its work had ended: such a
	// stream counts as idle, although its kernel may need an abort to end.
	Windows, Plain atomic.Bool

	mu   ranked.Mutex[busyMu]
	list []*Stream // guarded by mu
	left bool      // a stream was closed before its work had ended; guarded by mu
}

// IsNoted reports whether Note can be skipped for a stream: it was noted last, and the watcher is
// running. Unlike Note, it is small enough to be inlined into launches.
func (b *BusyStreams) IsNoted(s *Stream) bool { return b.recent.Load() == s && b.Watching.Load() }

// Note adds a stream that is about to get work and wakes the watcher.
func (b *BusyStreams) Note(s *Stream) {
	b.mu.Lock()
	if !slices.Contains(b.list, s) {
		b.list = append(b.list, s)
	}
	b.recent.Store(s)
	b.mu.Unlock()
	b.WakeWatcher()
}

// WakeWatcher starts the watcher, if it is not watching already.
func (b *BusyStreams) WakeWatcher() {
	if !b.Watching.Load() {
		b.Watching.Store(true)
		select {
		case b.Wake <- struct{}{}:
		default:
		}
	}
}

// AllIdle drops the streams that have become idle and reports whether no stream is left.
func (b *BusyStreams) AllIdle() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	// A launch that has already read recent holds its stream's lock, so its stream is not idle. Any
	// later launch waits for mu and adds its stream again.
	b.recent.Store(nil)
	b.list = slices.DeleteFunc(b.list, func(s *Stream) bool {
		idle := s.Idle()
		b.left = b.left || idle && s.left.Load()
		return idle
	})
	if len(b.list) > 0 {
		return false
	}
	b.Windows.Store(false)
	if !b.left {
		b.Plain.Store(false)
	}
	return true
}

// Idle reports whether no stream has unfinished work. The caller holds the lock of s.
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
