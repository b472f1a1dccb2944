package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"syscall"
	"time"

	"symmem/internal/sys"
)

// Endpoint is a server and what it takes to be let in.
type Endpoint struct {
	// Address is "host:port", "unix:@name" or "unix:/path".
	Address string
	// Token is empty for PyTorch's own servers, and where a Unix socket needs none.
	Token Token
}

const (
	firstBackoff = 10 * time.Millisecond
	maxBackoff   = 500 * time.Millisecond
)

// Dial connects to the store at an endpoint, trying again until the server is there or the
// context ends (DefaultTimeout if it has no deadline). A wrong token (ErrToken), a server that
// is no TCPStore (ErrProtocol) and a socket of another user (PeerError) end it at once. The
// caller must Close the client.
func Dial(ctx context.Context, to Endpoint) (*Client, error) {
	return dial(ctx, to, uint32(os.Geteuid()))
}

// dial lets the other end run as user uid.
func dial(ctx context.Context, to Endpoint, uid uint32) (*Client, error) {
	network, addr, err := split(to.Address)
	if err != nil {
		return nil, err
	}
	if err := to.Token.validate(); err != nil {
		return nil, err
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	once := func(ctx context.Context) (*link, error) {
		var dialer net.Dialer
		conn, err := dialer.DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		sys.CloseInForks(conn)
		if err := checkPeer(conn, to.Address, uid); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
		return handshake(ctx, conn, to)
	}
	first, err := retryUntil(ctx, once, isTransient)
	if err != nil {
		return nil, fmt.Errorf("connecting to the store at %s: %w", to.Address, err)
	}
	c := newClient(to.Address, func(ctx context.Context) (*link, error) {
		hangUps := 0
		return retryUntil(ctx, once, func(err error) bool {
			// A server with too many unauthenticated connections closes the oldest of them.
			if hungUp(err) {
				hangUps++
			}
			return isBusy(err) || hungUp(err) && hangUps <= maxHangUps
		})
	})
	c.adopt(first)
	return c, c.release(first, nil)
}

// isTransient reports whether a server that is still starting can cause err.
func isTransient(err error) bool {
	return !errors.Is(err, ErrProtocol) && !errors.Is(err, ErrToken) &&
		!errors.As(err, new(*PeerError))
}

// isBusy reports whether err is a full queue of a server that is there.
func isBusy(err error) bool { return errors.Is(err, syscall.EAGAIN) }

// retryUntil calls once, with growing pauses, as long as retry says that the error may pass.
func retryUntil[T any](
	ctx context.Context,
	once func(context.Context) (*T, error),
	retry func(error) bool,
) (*T, error) {
	for pause := firstBackoff; ; pause = min(2*pause, maxBackoff) {
		made, err := once(ctx)
		if err == nil || !retry(err) {
			return made, err
		}
		if !sleepAround(ctx, pause) {
			return nil, fmt.Errorf("%w; the last attempt: %w", context.Cause(ctx), err)
		}
	}
}

// sleepAround pauses for a random time around pause, so that ranks that started together do not
// connect at once, and reports whether the context is still alive.
func sleepAround(ctx context.Context, pause time.Duration) bool {
	return sleep(ctx, pause/2+rand.N(pause))
}
