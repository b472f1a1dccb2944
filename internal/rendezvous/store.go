package rendezvous

import (
	"context"
	"time"
)

// DefaultTimeout bounds calls whose context has no deadline. It is the default of PyTorch's stores.
const DefaultTimeout = 300 * time.Second

// withDefaultTimeout returns ctx with a deadline after DefaultTimeout, unless ctx has a deadline.
func withDefaultTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, hasDeadline := ctx.Deadline(); hasDeadline {
		return ctx, func() {}
	}

	return context.WithTimeout(ctx, DefaultTimeout)
}

// extend returns a context that is canceled with the same cause as ctx, but later by extension.
func extend(ctx context.Context, extension time.Duration) (context.Context, context.CancelFunc) {
	extended, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		hasSlept := sleep(extended, extension) // false after the CancelFunc below was called
		if hasSlept {
			cancel(context.Cause(ctx))
		}
	})
	return extended, func() {
		stop()
		cancel(nil)
	}
}
