package rendezvous

import (
	"context"
	"time"
)

// DefaultTimeout bounds every call whose context has no deadline: no call waits forever. It is
// the default of PyTorch's stores.
const DefaultTimeout = 300 * time.Second

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
