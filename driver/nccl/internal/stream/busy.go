package stream

import (
	"slices"
	"sync/atomic"

	"symmem/internal/ranked"
)

// BusyStreams tracks the streams that may have unfinished work of a communicator.
//
// A launch holds its stream's lock from Note until CUDA has the work, and a stream whose lock is
// held does not count as idle, so no stream is removed while it is getting work.
type BusyStreams struct {
	// recent holds the stream of the last Note as long as the stream is listed.
	recent atomic.Pointer[Stream]
	// Watching reports whether the watcher is checking streams. A send on Wake starts the watcher.
	Watching atomic.Bool
	Wake     chan struct{}

	// Windows reports whether a window kernel of NCCL may be unfinished, and Plain whether another
	// NCCL kernel may be. Plain stays set if a stream was closed before its work had ended, because
	// such a stream counts as idle although its kernel may end only after an abort.
	Windows, Plain atomic.Bool

	mu         ranked.Mutex[busyMu]
	list       []*Stream // guarded by mu
	closedBusy bool      // a stream was closed before its work had ended; guarded by mu
}

// IsNoted reports whether Note can be skipped for a stream, because the stream was noted last and
// the watcher is running. Unlike Note, it is small enough to be inlined into launches.
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

// AllIdle removes the streams that have become idle and reports whether none remains.
func (b *BusyStreams) AllIdle() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	// A launch that has already read recent holds its stream's lock, so its stream is not idle. Any
	// later launch waits for mu and adds its stream again.
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
