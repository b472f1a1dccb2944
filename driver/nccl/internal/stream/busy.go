package stream

import (
	"slices"
	"sync/atomic"

	"symmem/internal/ranked"
)

// Busy knows which streams may have work of a communicator under way.
//
// A launch holds its stream's lock from Note until CUDA has the work, and a stream whose lock is
// taken does not count as idle. So no stream leaves while it is being given work.
type Busy struct {
	// recent is the stream that was noted last, as long as it is listed.
	recent atomic.Pointer[Stream]
	// Awake reports whether the watcher is looking; Wake makes it look.
	Awake atomic.Bool
	Wake  chan struct{}

	// Windows reports whether what is under way may be a window kernel of NCCL's.
	Windows atomic.Bool

	mu   ranked.Mutex[busyMu]
	with []*Stream // guarded by mu
}

// Knows reports whether nothing is to be noted of a stream.
func (b *Busy) Knows(s *Stream) bool { return b.recent.Load() == s && b.Awake.Load() }

// Note records that a stream is about to get work, and has the watcher look. Nothing is to be noted
// of the stream that was noted last while the watcher is awake.
func (b *Busy) Note(s *Stream) {
	if b.recent.Load() != s {
		b.add(s)
	}
	b.Rouse()
}

// Rouse makes the watcher look, if it is not looking already.
func (b *Busy) Rouse() {
	if !b.Awake.Load() {
		b.Awake.Store(true)
		select {
		case b.Wake <- struct{}{}:
		default:
		}
	}
}

func (b *Busy) add(s *Stream) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !slices.Contains(b.with, s) {
		b.with = append(b.with, s)
	}
	b.recent.Store(s)
}

// AllIdle drops the streams that have become idle, and reports whether none is left.
func (b *Busy) AllIdle() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	// A launch that has read recent before this holds its stream's lock, so that stream is not idle;
	// one that comes later waits for mu, and lists its stream anew.
	b.recent.Store(nil)
	b.with = slices.DeleteFunc(b.with, (*Stream).Idle)
	if len(b.with) > 0 {
		return false
	}
	b.Windows.Store(false)
	return true
}

// Over reports whether nothing is under way, for the stream of a launch. Its lock is held.
func (b *Busy) Over(s *Stream) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return s.Quiet() && !slices.ContainsFunc(b.with, func(other *Stream) bool {
		return other != s && !other.Idle()
	})
}

// Streams lists the streams that may have work under way.
func (b *Busy) Streams() []*Stream {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.with)
}
