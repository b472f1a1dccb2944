package rendezvous

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"
)

// callWithRetries repeats call, with pauses, until call succeeds or shouldRetry returns false. If
// ctx is done during a pause, callWithRetries returns the cause of ctx and the last error.
func callWithRetries[T any](
	ctx context.Context,
	call func(context.Context) (*T, error),
	shouldRetry func(error) bool,
) (*T, error) {
	pause := firstBackoff
	for {
		result, err := call(ctx)
		if err == nil || !shouldRetry(err) {
			return result, err
		}

		hasPaused := sleepWithJitter(ctx, pause)
		if !hasPaused {
			return nil, fmt.Errorf("%w; the last attempt: %w", context.Cause(ctx), err)
		}

		pause = min(2*pause, maxBackoff)
	}
}

// The mean pause between attempts starts at firstBackoff and doubles up to maxBackoff.
const (
	firstBackoff = 10 * time.Millisecond
	maxBackoff   = 500 * time.Millisecond
)

// sleepWithJitter sleeps for 0.5 to 1.5 times pause, so that not all ranks retry at once. It
// returns false if ctx is done first.
func sleepWithJitter(ctx context.Context, pause time.Duration) bool {
	return sleep(ctx, pause/2+rand.N(pause))
}

// sleep waits for d. It returns false if ctx is done first.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}

	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// DefaultTimeout bounds calls whose context has no deadline. It is the default of PyTorch's stores.
const DefaultTimeout = 300 * time.Second

// withDefaultTimeout returns ctx with a deadline after DefaultTimeout, unless ctx has a deadline.
func withDefaultTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, hasDeadline := ctx.Deadline(); hasDeadline {
		return ctx, func() {}
	}

	return context.WithTimeout(ctx, DefaultTimeout)
}

// extend returns a context that ends later than ctx by extension, with the same cause.
func extend(ctx context.Context, extension time.Duration) (context.Context, context.CancelFunc) {
	extended, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		hasSlept := sleep(extended, extension) // false if extended was canceled
		if hasSlept {
			cancel(context.Cause(ctx))
		}
	})
	return extended, func() {
		stop()
		cancel(nil)
	}
}

// lateRequestTimeout limits requests that are sent after the caller's context is done. A running
// store answers much sooner.
const lateRequestTimeout = 2 * time.Second
