package driver

import "context"

// LazyWindows is a Communicator on which registration alone makes no window of the library's, since
// calls can do without: the direct path needs none, and they cost milliseconds each.
type LazyWindows interface {
	// UseWindows makes the library's windows over what is registered, and over all that is
	// registered from then on, so that calls can take the window path. It is collective, and does
	// nothing the second time. A stream that captures gives ErrCapturing before anything happens;
	// after another error the communicator has failed.
	UseWindows(ctx context.Context) error
}
