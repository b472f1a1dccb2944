package symmem

import (
	"fmt"
	"slices"
	"weak"

	"symmem/internal/ranked"
	"symmem/trace"
)

const envTrace = "SYMMEM_TRACE"

type recording struct {
	trace   *trace.Writer // or nil; set before there are pools and groups
	onEvent bool
	mu      *ranked.Mutex[runtimeMu]
	closed  bool                   // guarded by mu
	boxes   []weak.Pointer[outbox] // guarded by mu
}

func (r *recording) open(o *Options, rank, size int) (err error) {
	if o.Trace == "" {
		return nil
	}

	r.trace, err = trace.Create(o.Trace, trace.Options{Rank: rank, Size: size})
	if err != nil {
		return fmt.Errorf("Options.Trace: %w", err)
	}

	return nil
}

func (r *recording) isActive() bool { return r.onEvent || r.trace != nil }

// connect makes an outbox (the queue of events of a pool or group) write to the trace. It must be
// called before other goroutines use the outbox.
func (r *recording) connect(box *outbox) {
	if r.trace == nil {
		return
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}

	box.trace = r.trace.NewSource()
	if len(r.boxes) == cap(r.boxes) {
		r.boxes = slices.DeleteFunc(r.boxes, func(b weak.Pointer[outbox]) bool {
			return b.Value() == nil
		})
	}

	r.boxes = append(r.boxes, weak.Make(box))
}

// close requires that the caller holds no lock.
func (r *recording) close() error {
	if r.trace == nil {
		return nil
	}

	r.mu.Lock()
	r.closed = true
	boxes := r.boxes
	r.mu.Unlock()
	for _, b := range boxes {
		if box := b.Value(); box != nil {
			box.disconnect()
		}
	}

	return r.trace.Close()
}
