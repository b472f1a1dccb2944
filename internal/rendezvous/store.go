package rendezvous

import (
	"context"
	"time"
)

// DefaultTimeout limits calls whose context has no deadline, as in PyTorch's stores.
const DefaultTimeout = 300 * time.Second

func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, DefaultTimeout)
}

// extend returns a context that ends the given time after ctx, with the same cause.
func extend(ctx context.Context, extension time.Duration) (context.Context, context.CancelFunc) {
	extended, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		if sleep(extended, extension) {
			cancel(context.Cause(ctx))
		}
	})
	return extended, func() { stop(); cancel(nil) }
}
