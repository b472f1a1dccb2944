package stream

import (
	"slices"
	"sync/atomic"

	"symmem/internal/ranked"
)

// BusyStreams knows which streams may have work of a communicator under way.
//
// A launch holds its stream's lock from Note until CUDA has the work, and a stream whose lock is
// taken does not count as idle. So no stream leaves while it is being given work.
type BusyStreams struct {
	// recent is the stream that was noted last, as long as it is listed.
	recent atomic.Pointer[Stream]
	// Watching reports whether the watcher is checking streams; a send on Wake starts it.
	Watching atomic.Bool
	Wake     chan struct{}

	// Windows reports whether what is under way may be a window kernel of NCCL's, and Plain whether it
	// may be another one of NCCL's. Plain stays where a stream was closed before its work had ended:
	// the stream counts as idle, and only an abort ends such a kernel.
	Windows, Plain atomic.Bool

	mu   ranked.Mutex[busyMu]
	list []*Stream // guarded by mu
	left bool      // whether a stream was closed before its work had ended; guarded by mu
}

// IsNoted reports whether Note has nothing to do for a stream: it was noted last, and the watcher
// is watching. Go inlines it into launches, but not Note.
func (b *BusyStreams) IsNoted(s *Stream) bool { return b.recent.Load() == s && b.Watching.Load() }

// Note adds a stream that is about to get work, and wakes the watcher.
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

// AllIdle drops the streams that have become idle, and reports whether none is left.
func (b *BusyStreams) AllIdle() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	// A launch that has read recent before this holds its stream's lock, so that stream is not idle;
	// one that comes later waits for mu, and lists its stream anew.
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

// NoneUnderWay reports whether nothing is under way, for the stream of a launch. Its lock is held.
func (b *BusyStreams) NoneUnderWay(s *Stream) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return s.IdleLocked() && !slices.ContainsFunc(b.list, func(other *Stream) bool {
		return other != s && !other.Idle()
	})
}

// Streams lists the streams that may have work under way.
func (b *BusyStreams) Streams() []*Stream {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.list)
}
