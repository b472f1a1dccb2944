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

// The pause between attempts to connect starts at firstBackoff and doubles up to maxBackoff.
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

// dial is Dial for a store that the user with the given ID must serve.
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
	wasLost := false // an attempt failed because the store ended
	first, err := callWithRetries(ctx, dialOnce, func(err error) bool {
		wasLost = wasLost || errors.Is(err, ErrLost)
		return isTransient(err)
	})
	if wasLost && err != nil && !errors.Is(err, ErrLost) {
		err = fmt.Errorf("%w; an earlier attempt: %w", err, ErrLost)
	}
	if err != nil {
		return nil, fmt.Errorf("connecting to the store at %s: %w", endpoint.Address, err)
	}
	// Further connections have fewer retries, because the store is known to exist.
	c := newClient(endpoint.Address, func(ctx context.Context) (*link, error) {
		earlyCloseCount := 0
		return callWithRetries(ctx, dialOnce, func(err error) bool {
			// The server may have closed this connection because it had too many others that were
			// not authenticated yet.
			if isClosed(err) {
				earlyCloseCount++
			}
			isEarlyClose := isClosed(err) && earlyCloseCount <= maxEarlyCloses
			return isBusy(err) || isEarlyClose
		})
	})
	c.addLink(first)
	return c, c.releaseLink(first, nil)
}

// isTransient reports whether another attempt to connect may succeed after err.
func isTransient(err error) bool {
	return !errors.Is(err, ErrProtocol) && !errors.Is(err, ErrToken) &&
		!errors.As(err, new(*PeerError))
}

// isBusy reports whether a connection failed because the accept queue of a running server is full.
func isBusy(err error) bool { return errors.Is(err, syscall.EAGAIN) }

// callWithRetries repeats call until it succeeds, shouldRetry returns false for its error, or ctx
// is done. It pauses before each repetition.
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

// sleepWithJitter sleeps for a random time between half and one and a half of pause, so that ranks
// do not all connect at once. It returns false if ctx is done first.
func sleepWithJitter(ctx context.Context, pause time.Duration) bool {
	return sleep(ctx, pause/2+rand.N(pause))
}
