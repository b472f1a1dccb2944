package gpu

import (
	"context"
	"errors"
	"runtime"
	"time"
)

const (
	// Poll spins for spinUntil, about the duration of a small collective, then yields the processor
	// until yieldUntil after its start, and then sleeps between polls.
	spinUntil  = 50 * time.Microsecond
	yieldUntil = 500 * time.Microsecond
	// Nap is the length of each sleep.
	Nap = 50 * time.Microsecond
)

// Poll waits until done returns true or ctx is done, and then returns the cause of ctx.
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
			time.Sleep(Nap)
		}
	}
}

// PollWithBackoff waits without a time limit until done returns true, with growing pauses between
// polls. It is meant for the program's own work, which may take hours.
func PollWithBackoff(done func() bool) {
	const maxPause = 50 * time.Millisecond
	for pause := Nap; !done(); pause = min(2*pause, maxPause) {
		time.Sleep(pause)
	}
}

// Within calls PollQuery with a time limit.
func Within(limit time.Duration, query func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return PollQuery(ctx, query)
}

// PollQuery polls until query returns true or an error, or ctx is done.
func PollQuery(ctx context.Context, query func() (bool, error)) error {
	var queryErr error
	err := Poll(ctx, func() bool {
		done, err := query()
		queryErr = err
		return done || err != nil
	})
	return errors.Join(err, queryErr)
}
