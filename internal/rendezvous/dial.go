package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"syscall"
	"time"

	"symmem/internal/sys"
)

// Endpoint identifies a server and the token that it requires.
type Endpoint struct {
	// Address has the form "host:port", "unix:@name" or "unix:/path".
	Address string
	Token   Token
}

// The pause between two attempts to connect starts at firstBackoff and doubles up to maxBackoff.
const (
	firstBackoff = 10 * time.Millisecond
	maxBackoff   = 500 * time.Millisecond
)

// Dial connects to a store. The caller must close the client. Dial retries until ctx is done, or
// until DefaultTimeout if ctx has no deadline. After ErrToken, ErrProtocol or a PeerError, it
// returns at once.
func Dial(ctx context.Context, endpoint Endpoint) (*Client, error) {
	return dial(ctx, endpoint, uint32(os.Geteuid()))
}

// dial is Dial for a store whose process must belong to the user uid. It checks this only for Unix
// sockets.
func dial(ctx context.Context, endpoint Endpoint, uid uint32) (*Client, error) {
	network, addr, err := splitAddress(endpoint.Address)
	if err != nil {
		return nil, err
	}

	if err := endpoint.Token.validate(); err != nil {
		return nil, err
	}

	ctx, cancel := withDefaultTimeout(ctx)
	defer cancel()
	dialOnce := func(ctx context.Context) (*link, error) {
		conn, err := sys.Dialer().DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}

		sys.CloseInForks(conn)
		err = checkPeer(conn, endpoint.Address, uid)
		if err != nil {
			closeErr := conn.Close()
			return nil, errors.Join(err, closeErr)
		}

		return handshake(ctx, conn, endpoint) // closes conn after an error
	}
	wasLost := false // an attempt failed because the store ended
	firstLink, err := callWithRetries(ctx, dialOnce, func(err error) bool {
		if errors.Is(err, ErrLost) {
			wasLost = true
		}

		return isTransient(err)
	})
	if err != nil {
		if wasLost && !errors.Is(err, ErrLost) {
			err = fmt.Errorf("%w; an earlier attempt: %w", err, ErrLost)
		}

		return nil, fmt.Errorf("connecting to the store at %s: %w", endpoint.Address, err)
	}

	// Further connections have fewer retries, because the store is known to exist.
	dialAgain := func(ctx context.Context) (*link, error) {
		closeCount := 0
		return callWithRetries(ctx, dialOnce, func(err error) bool {
			if !isClosed(err) {
				return isBusy(err)
			}

			// The server may have closed this connection because it had too many others that were
			// not authenticated yet.
			closeCount++
			return closeCount <= maxEarlyCloses
		})
	}
	c := newClient(endpoint.Address, dialAgain)
	c.addLink(firstLink)
	err = c.releaseLink(firstLink, nil) // nil, because no other goroutine has c yet
	return c, err
}

// isTransient reports whether another attempt to connect may succeed after err.
func isTransient(err error) bool {
	return !errors.Is(err, ErrProtocol) && !errors.Is(err, ErrToken) &&
		!errors.As(err, new(*PeerError))
}

// isBusy reports whether an attempt to connect failed because a running server has not yet accepted
// earlier connections.
func isBusy(err error) bool { return errors.Is(err, syscall.EAGAIN) }

// callWithRetries repeats call until it succeeds or shouldRetry returns false for its error. It
// pauses before each repetition. It returns an error if ctx is done during a pause.
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

		if !sleepWithJitter(ctx, pause) {
			return nil, fmt.Errorf("%w; the last attempt: %w", context.Cause(ctx), err)
		}

		pause = min(2*pause, maxBackoff)
	}
}

// sleepWithJitter sleeps for a random time between 0.5 and 1.5 times pause, so that not all ranks
// connect at once. It returns false if ctx is done first.
func sleepWithJitter(ctx context.Context, pause time.Duration) bool {
	return sleep(ctx, pause/2+rand.N(pause))
}
