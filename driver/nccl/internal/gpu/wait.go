package gpu

import (
	"context"
	"errors"
	"runtime"
	"time"
)

// Poll spins for about the duration of a small collective, then yields, then sleeps.
const (
	spinUntil  = 50 * time.Microsecond
	yieldUntil = 500 * time.Microsecond
	// Nap is the length of each sleep.
	Nap = 50 * time.Microsecond
)

// Poll waits until done returns true or ctx ends.
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

// PollSeldom waits until done returns true, without a limit, and polls less and less often. It is
// for work of the program, which may take hours.
func PollSeldom(done func() bool) {
	const longest = 50 * time.Millisecond
	for pause := Nap; !done(); pause = min(2*pause, longest) {
		time.Sleep(pause)
	}
}

// Within calls Ask with a time limit.
func Within(limit time.Duration, ask func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return Ask(ctx, ask)
}

// Ask polls until ask returns true or an error, or ctx ends.
func Ask(ctx context.Context, ask func() (bool, error)) error {
	var failed error
	err := Poll(ctx, func() bool {
		done, err := ask()
		failed = err
		return done || err != nil
	})
	return errors.Join(err, failed)
}
