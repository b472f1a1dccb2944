package nccl

import (
	"slices"
	"sync/atomic"

	"symmem/internal/ranked"
)

// busy knows which streams may have work of a communicator under way.
//
// A launch holds its stream's lock from note until CUDA has the work, and a stream whose lock is
// taken does not count as idle. So no stream leaves while it is being given work.
type busy struct {
	// recent is the stream that was noted last, as long as it is listed.
	recent atomic.Pointer[stream]
	// awake tells that the watcher is looking; wake makes it look.
	awake atomic.Bool
	wake  chan struct{}

	// windows tells that what is under way may be a window kernel of NCCL's.
	windows atomic.Bool

	mu   ranked.Mutex[busyMu]
	with []*stream // guarded by mu
}

// note records that a stream is about to get work, and has the watcher look. Nothing is to be noted
// of the stream that was noted last while the watcher is awake.
func (b *busy) note(s *stream) {
	if b.recent.Load() != s {
		b.add(s)
	}
	b.rouse()
}

// rouse makes the watcher look, if it is not looking already.
func (b *busy) rouse() {
	if !b.awake.Load() {
		b.awake.Store(true)
		select {
		case b.wake <- struct{}{}:
		default:
		}
	}
}

func (b *busy) add(s *stream) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !slices.Contains(b.with, s) {
		b.with = append(b.with, s)
	}
	b.recent.Store(s)
}

// settle drops the streams that have become idle, and reports whether none is left.
func (b *busy) settle() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	// A launch that has read recent before this holds its stream's lock, so that stream is not idle;
	// one that comes later waits for mu, and lists its stream anew.
	b.recent.Store(nil)
	b.with = slices.DeleteFunc(b.with, (*stream).idle)
	if len(b.with) > 0 {
		return false
	}
	b.windows.Store(false)
	return true
}

// over reports whether nothing is under way, for the stream of a launch. Its lock is held.
func (b *busy) over(s *stream) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return s.quiet() && !slices.ContainsFunc(b.with, func(other *stream) bool {
		return other != s && !other.idle()
	})
}

// streams lists the streams that may have work under way.
func (b *busy) streams() []*stream {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.with)
}
