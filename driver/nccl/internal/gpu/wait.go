package gpu

import (
	"context"
	"errors"
	"runtime"
	"time"
)

// A wait for the GPU spins as long as a small collective takes, then gives way, then sleeps.
const (
	spinFor  = 50 * time.Microsecond
	yieldFor = 500 * time.Microsecond
	// Nap is how long it sleeps at a time.
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
		case waited < spinFor:
		case waited < yieldFor:
			runtime.Gosched()
		default:
			time.Sleep(Nap)
		}
	}
}

// PollSeldom waits until done returns true, however long that takes, and asks ever more seldom: for
// work of the program's, which may take hours.
func PollSeldom(done func() bool) {
	const longest = 50 * time.Millisecond
	for pause := Nap; !done(); pause = min(2*pause, longest) {
		time.Sleep(pause)
	}
}

// Within is Ask with a limit.
func Within(limit time.Duration, ask func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return Ask(ctx, ask)
}

// Ask asks again and again until the answer is yes or an error, or ctx ends.
func Ask(ctx context.Context, ask func() (bool, error)) error {
	var failed error
	err := Poll(ctx, func() bool {
		done, err := ask()
		failed = err
		return done || err != nil
	})
	return errors.Join(err, failed)
}
