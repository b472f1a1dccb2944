package rendezvous

import (
	"context"
	"time"
)

// DefaultTimeout limits calls whose context has no deadline. PyTorch's stores have the same
// default.
const DefaultTimeout = 300 * time.Second

// bounded adds the default deadline to a context without one.
func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, DefaultTimeout)
}

// extend returns a context that ends the given time after ctx. It has the same cause as ctx.
func extend(ctx context.Context, extension time.Duration) (context.Context, context.CancelFunc) {
	extended, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		if sleep(extended, extension) {
			cancel(context.Cause(ctx))
		}
	})
	return extended, func() { stop(); cancel(nil) }
}
