package nccl

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"symmem/driver"
	"symmem/internal/cuda"
)

// queues finds CUDA streams that are not held up. CUDA has few queues from the processor to a
// device, which its streams get in turn: as many as CUDA_DEVICE_MAX_CONNECTIONS says, or 8. What is
// queued behind a kernel that does not end holds up its queue, and with it all other streams that
// have got it: nothing that is queued there arrives. The zero value is ready.
type queues struct {
	mu sync.Mutex
	// candidates are streams that nobody has yet, each with an event on it that says whether its
	// queue is held up; guarded by mu. They are kept: to destroy one that is might wait for the
	// kernel.
	candidates []candidate
	// searched is the value of stuck for which all queues were found to be held up; guarded by mu.
	searched uint64
}

type candidate struct {
	stream  cuda.Stream
	arrival cuda.Event
	// stuck is the value of stuck when the event was recorded: since then a kernel may have been
	// given up that holds up what had arrived.
	stuck uint64
}

const (
	// mostQueues is how many there may be at most.
	mostQueues = 32
	// prompt is in what time an event on an idle stream arrives if nothing is in its way. It takes
	// microseconds.
	prompt = time.Millisecond
)

// createStream makes a CUDA stream, after a kernel was given up one that is not held up. It is
// called on a thread of the device.
func (d *Device) createStream() (cuda.Stream, error) {
	if stuck.Load() == 0 {
		return d.cuda.StreamCreate(true)
	}
	return d.queues.find(d)
}

// find makes streams until one is not held up. If all are, it waits as long as kernels get to end,
// once for each kernel that was given up: other work may be in the way, too.
func (q *queues) find(d *Device) (cuda.Stream, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range q.candidates {
		if err := q.candidates[i].record(d); err != nil {
			return 0, err
		}
	}
	for len(q.candidates) < mostQueues {
		if err := q.add(d); err != nil {
			return 0, err
		}
		if stream, err := q.await(d, prompt); stream != 0 || err != nil {
			return stream, err
		}
	}
	limit := prompt
	if now := stuck.Load(); q.searched != now {
		q.searched, limit = now, endingTime
	}
	if stream, err := q.await(d, limit); stream != 0 || err != nil {
		return stream, err
	}
	return 0, fmt.Errorf("a kernel that does not end holds up all queues to GPU %d "+
		"(CUDA_DEVICE_MAX_CONNECTIONS says how many there are): %w", d.gpu.Ordinal(), driver.ErrFault)
}

// add makes a candidate. q.mu is held.
func (q *queues) add(d *Device) error {
	stream, err := d.cuda.StreamCreate(true)
	if err != nil {
		return err
	}
	e, err := d.cuda.EventCreate(cuda.EventDisableTiming)
	if err != nil {
		return errors.Join(err, d.cuda.StreamDestroy(stream))
	}
	c := candidate{stream: stream, arrival: e, stuck: stuck.Load()}
	if err := d.cuda.EventRecord(e, stream); err != nil {
		return errors.Join(err, d.cuda.EventDestroy(e), d.cuda.StreamDestroy(stream))
	}
	q.candidates = append(q.candidates, c)
	return nil
}

// record records the event anew, if a kernel was given up since it was recorded.
func (c *candidate) record(d *Device) error {
	now := stuck.Load()
	if c.stuck == now {
		return nil
	}
	c.stuck = now
	return d.cuda.EventRecord(c.arrival, c.stream)
}

// await takes the first candidate that turns out not to be held up, or returns 0. q.mu is held.
func (q *queues) await(d *Device, limit time.Duration) (stream cuda.Stream, err error) {
	late := d.within(limit, func() (bool, error) {
		for i, c := range q.candidates {
			arrived, err := d.cuda.EventQuery(c.arrival)
			if err != nil {
				return false, err
			}
			if arrived {
				q.candidates = append(q.candidates[:i], q.candidates[i+1:]...)
				stream = c.stream
				return true, d.cuda.EventDestroy(c.arrival)
			}
		}
		return false, nil
	})
	if errors.Is(late, context.DeadlineExceeded) {
		return 0, nil
	}
	return stream, late
}
