package rendezvous

import (
	"context"
	"time"
)

// DefaultTimeout limits every call whose context has no deadline: no call waits forever. PyTorch's
// stores have the same default.
const DefaultTimeout = 300 * time.Second

// bounded adds the default deadline to a context without one.
func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, DefaultTimeout)
}

// outlasting returns a context that ends some time after ctx, with its cause.
func outlasting(ctx context.Context, while time.Duration) (context.Context, context.CancelFunc) {
	longer, end := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		if sleep(longer, while) {
			end(context.Cause(ctx))
		}
	})
	return longer, func() { stop(); end(nil) }
}
