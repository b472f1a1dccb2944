package nccl

import (
	"context"
	"errors"
	"fmt"
	"time"

	"symmem/driver"
	"symmem/internal/cuda"
)

// CUDA has few queues from the processor to a device, which its streams get in turn: as many as
// CUDA_DEVICE_MAX_CONNECTIONS says, or 8. What is queued behind a kernel that does not end holds up
// its queue, and with it all other streams that have got it: nothing that is queued there arrives.

const (
	// mostQueues is how many there may be at most.
	mostQueues = 32
	// arrival is how long what is queued on an idle stream may take to arrive. It takes microseconds.
	arrival = 100 * time.Millisecond
)

// createStream makes a CUDA stream, after a kernel was given up one whose queue is not held up.
// Those that are held up are left: to destroy one might wait for that kernel. It is called on a
// thread of the device.
func (d *Device) createStream() (cuda.Stream, error) {
	if stuck.Load() == 0 {
		return d.cuda.StreamCreate(true)
	}
	for range mostQueues {
		stream, err := d.cuda.StreamCreate(true)
		if err != nil {
			return 0, err
		}
		if moves, err := d.moves(stream); moves || err != nil {
			return stream, err
		}
	}
	return 0, fmt.Errorf("a kernel that does not end holds up all queues to GPU %d; with "+
		"CUDA_DEVICE_MAX_CONNECTIONS=%d there are more: %w", d.gpu.Ordinal(), mostQueues,
		driver.ErrFault)
}

// moves tells whether what is queued on an idle stream arrives.
func (d *Device) moves(stream cuda.Stream) (bool, error) {
	e, err := d.cuda.EventCreate(cuda.EventDisableTiming)
	if err != nil {
		return false, err
	}
	err = d.cuda.EventRecord(e, stream)
	if err == nil {
		err = d.within(arrival, func() (bool, error) { return d.cuda.EventQuery(e) })
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return false, nil
	}
	return err == nil, errors.Join(err, d.cuda.EventDestroy(e))
}

// within asks again and again until the answer is yes, an error, or too late.
func (d *Device) within(limit time.Duration, ask func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	var failed error
	err := poll(ctx, func() bool {
		done, err := ask()
		failed = err
		return done || err != nil
	})
	return errors.Join(err, failed)
}
