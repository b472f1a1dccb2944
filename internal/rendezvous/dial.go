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

// Rank 1 may connect to the store of rank 0 before rank 0 serves it. Dial then tries again: after
// 10 ms, 20 ms, 40 ms and so on. These pauses are means of random times, so that not all ranks
// connect at once.
//
// Dial opens one connection. The returned client opens more if it needs them.

// Endpoint identifies a server and the token that it requires.
type Endpoint struct {
	// Address has the form "host:port", "unix:@name" or "unix:/path".
	Address string
	Token   Token
}

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
	d := &dialer{endpoint: endpoint, network: network, addr: addr, uid: uid}
	firstLink, err := d.openFirst(ctx)
	if err != nil {
		return nil, fmt.Errorf("connecting to the store at %s: %w", endpoint.Address, err)
	}

	c := newClient(endpoint.Address, d.openAnother)
	c.addLink(firstLink)
	err = c.releaseLink(firstLink, nil) // nil, because no other goroutine has c yet
	return c, err
}

// dialer opens connections to one store.
type dialer struct {
	endpoint      Endpoint
	network, addr string // Endpoint.Address, for package net
	uid           uint32 // user whose process must serve a Unix socket
}

// openOnce opens a connection, without retries.
func (d *dialer) openOnce(ctx context.Context) (*link, error) {
	conn, err := sys.Dialer().DialContext(ctx, d.network, d.addr)
	if err != nil {
		return nil, err
	}

	sys.CloseInForks(conn)
	err = checkPeer(conn, d.endpoint.Address, d.uid)
	if err != nil {
		closeErr := conn.Close()
		return nil, errors.Join(err, closeErr)
	}

	return handshake(ctx, conn, d.endpoint) // closes conn after an error
}

// openFirst opens the first connection. The store may not exist yet, so openFirst retries until ctx
// is done.
func (d *dialer) openFirst(ctx context.Context) (*link, error) {
	wasLost := false // whether the store has ended during an attempt
	l, err := callWithRetries(ctx, d.openOnce, func(err error) bool {
		if errors.Is(err, ErrLost) {
			wasLost = true
		}

		return isTransient(err)
	})
	if err != nil && wasLost && !errors.Is(err, ErrLost) {
		err = fmt.Errorf("%w; an earlier attempt: %w", err, ErrLost)
	}

	return l, err
}

// openAnother opens a further connection. The store is known to exist, so openAnother retries only
// if the server may be overloaded.
func (d *dialer) openAnother(ctx context.Context) (*link, error) {
	closeCount := 0
	return callWithRetries(ctx, d.openOnce, func(err error) bool {
		if !isClosed(err) {
			return isBusy(err)
		}

		// The server closes connections if too many of them have not sent the token yet.
		closeCount++
		return closeCount <= maxEarlyCloses
	})
}

// isTransient reports whether another attempt may succeed after err. It returns false if another
// program or another user serves the address, or if the server has refused the token.
func isTransient(err error) bool {
	return !errors.Is(err, ErrProtocol) && !errors.Is(err, ErrToken) &&
		!errors.As(err, new(*PeerError))
}

// isBusy reports whether the server has not accepted earlier connections yet.
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

		hasPaused := sleepWithJitter(ctx, pause)
		if !hasPaused {
			return nil, fmt.Errorf("%w; the last attempt: %w", context.Cause(ctx), err)
		}

		pause = min(2*pause, maxBackoff)
	}
}

// The pause before another attempt starts at firstBackoff and doubles up to maxBackoff.
const (
	firstBackoff = 10 * time.Millisecond
	maxBackoff   = 500 * time.Millisecond
)

// sleepWithJitter sleeps for a random time between 0.5 and 1.5 times pause. It returns false if ctx
// is done first.
func sleepWithJitter(ctx context.Context, pause time.Duration) bool {
	return sleep(ctx, pause/2+rand.N(pause))
}
