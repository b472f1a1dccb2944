package rendezvous

import (
	"context"
	"time"
)

// DefaultTimeout bounds every call whose context has no deadline: no call waits forever. It is
// the default of PyTorch's stores.
const DefaultTimeout = 300 * time.Second

// A Store holds small keys and values that all ranks of a job share. It is safe for concurrent
// use: a call that waits does not hold up the others.
//
// A call that has returned without error has taken effect for all ranks. A call that was
// cancelled may have taken effect. Keys are at most 8 KiB, values 8 MiB, and a call names at
// most 128 Ki keys (ErrTooLarge).
type Store interface {
	// Set stores value under key.
	Set(ctx context.Context, key string, value []byte) error
	// Get waits until key is there and returns its value, which the caller owns.
	Get(ctx context.Context, key string) ([]byte, error)
	// Add adds delta to the decimal number under key (a missing key counts as 0) and returns
	// the sum. If the value is no number the server closes the connection.
	Add(ctx context.Context, key string, delta int64) (int64, error)
	// Wait returns once all keys are there, or a *WaitError that names those that are not.
	Wait(ctx context.Context, keys ...string) error
	// CompareSet stores desired if key holds expected, or if key is missing and expected is
	// empty, and returns what key holds afterwards. For a missing key with an expectation it
	// returns expected, as TCPStore does.
	CompareSet(ctx context.Context, key string, expected, desired []byte) ([]byte, error)
}

// bounded gives a context without a deadline the default one.
func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, DefaultTimeout)
}

// outlasting gives a context that ends a while after ctx does, with its cause.
func outlasting(ctx context.Context, while time.Duration) (context.Context, context.CancelFunc) {
	longer, end := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		if sleep(longer, while) {
			end(context.Cause(ctx))
		}
	})
	return longer, func() { stop(); end(nil) }
}
