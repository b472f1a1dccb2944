package gpu

import (
	"context"
	"errors"
	"runtime"
	"time"
)

const (
	// Poll spins for about the duration of a small collective, then yields, and then sleeps.
	spinUntil  = 50 * time.Microsecond
	yieldUntil = 500 * time.Microsecond
	// PollPause is the length of each sleep.
	PollPause = 50 * time.Microsecond
)

// Poll waits until done returns true. If ctx is done first, Poll returns the cause.
func Poll(ctx context.Context, done func() bool) error {
	for begin := time.Now(); ; {
		if done() {
			return nil
		}

		if ctx.Err() != nil {
			return context.Cause(ctx)
		}

		switch waited := time.Since(begin); {
		case waited < spinUntil:
		case waited < yieldUntil:
			runtime.Gosched()
		default:
			time.Sleep(PollPause)
		}
	}
}

// PollWithBackoff waits until done returns true, which may take hours.
func PollWithBackoff(done func() bool) {
	const maxPause = 50 * time.Millisecond
	for pause := PollPause; !done(); pause = min(2*pause, maxPause) {
		time.Sleep(pause)
	}
}

// PollQueryFor calls PollQuery with a time limit.
func PollQueryFor(limit time.Duration, query func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return PollQuery(ctx, query)
}

// PollQuery waits until query returns true or an error, or until ctx is done.
func PollQuery(ctx context.Context, query func() (bool, error)) error {
	var queryErr error
	err := Poll(ctx, func() bool {
		done, err := query()
		queryErr = err
		return done || err != nil
	})
	return errors.Join(err, queryErr)
}
