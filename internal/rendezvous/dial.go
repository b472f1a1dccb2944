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

const (
	firstBackoff = 10 * time.Millisecond
	maxBackoff   = 500 * time.Millisecond
)

// Dial connects to a store. It retries until ctx is done, or until DefaultTimeout if ctx has no
// deadline. It does not retry after ErrToken, ErrProtocol and PeerError. The caller must close the
// client.
func Dial(ctx context.Context, endpoint Endpoint) (*Client, error) {
	return dial(ctx, endpoint, uint32(os.Geteuid()))
}

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
		if err := checkPeer(conn, endpoint.Address, uid); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
		return handshake(ctx, conn, endpoint)
	}
	isLost := false
	first, err := callWithRetries(ctx, dialOnce, func(err error) bool {
		isLost = isLost || errors.Is(err, ErrLost)
		return isTransient(err)
	})
	if isLost && err != nil && !errors.Is(err, ErrLost) {
		err = fmt.Errorf("%w; an earlier attempt: %w", err, ErrLost)
	}
	if err != nil {
		return nil, fmt.Errorf("connecting to the store at %s: %w", endpoint.Address, err)
	}
	c := newClient(endpoint.Address, func(ctx context.Context) (*link, error) {
		earlyCloseCount := 0
		return callWithRetries(ctx, dialOnce, func(err error) bool {
			// The server may have closed this connection because it had too many unauthenticated
			// ones.
			if isClosed(err) {
				earlyCloseCount++
			}
			return isBusy(err) || isClosed(err) && earlyCloseCount <= maxEarlyCloses
		})
	})
	c.addLink(first)
	return c, c.releaseLink(first, nil)
}

func isTransient(err error) bool {
	return !errors.Is(err, ErrProtocol) && !errors.Is(err, ErrToken) &&
		!errors.As(err, new(*PeerError))
}

// isBusy reports whether the accept queue of a running server is full.
func isBusy(err error) bool { return errors.Is(err, syscall.EAGAIN) }

// callWithRetries repeats call until it succeeds, shouldRetry returns false, or ctx is done.
func callWithRetries[T any](
	ctx context.Context,
	call func(context.Context) (*T, error),
	shouldRetry func(error) bool,
) (*T, error) {
	for pause := firstBackoff; ; pause = min(2*pause, maxBackoff) {
		result, err := call(ctx)
		if err == nil || !shouldRetry(err) {
			return result, err
		}
		if !sleepWithJitter(ctx, pause) {
			return nil, fmt.Errorf("%w; the last attempt: %w", context.Cause(ctx), err)
		}
	}
}

// sleepWithJitter sleeps for a random time near pause, so that ranks do not all connect at once. It
// returns false if ctx is done first.
func sleepWithJitter(ctx context.Context, pause time.Duration) bool {
	return sleep(ctx, pause/2+rand.N(pause))
}
