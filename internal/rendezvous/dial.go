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

// Dial connects to a store. The caller must close the client.
//
// The store may not exist yet, so Dial retries until ctx is done, or for DefaultTimeout if ctx has
// no deadline. It does not retry after ErrToken, ErrProtocol or a PeerError.
func Dial(ctx context.Context, endpoint Endpoint) (*Client, error) {
	return dial(ctx, endpoint, uint32(os.Geteuid()))
}

// dial is Dial, except that the server of a Unix socket must belong to the user uid.
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
	c.addLink(firstLink) // succeeds, because c is open
	err = c.releaseLink(firstLink, nil)
	return c, err
}

type dialer struct {
	endpoint      Endpoint
	network, addr string // arguments of net.Dial for endpoint.Address
	uid           uint32 // required user of the process that serves a Unix socket
}

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

// openFirst opens a connection to a store that may not exist yet.
func (d *dialer) openFirst(ctx context.Context) (*link, error) {
	wasLost := false // whether the store has ended during an attempt
	shouldRetry := func(err error) bool {
		wasLost = wasLost || errors.Is(err, ErrLost)
		return isTransient(err)
	}
	l, err := callWithRetries(ctx, d.openOnce, shouldRetry)
	mentionsLoss := errors.Is(err, ErrLost)
	if err != nil && wasLost && !mentionsLoss {
		err = fmt.Errorf("%w; an earlier attempt: %w", err, ErrLost)
	}

	return l, err
}

// openAnother opens a further connection. It retries only if the server may be overloaded.
func (d *dialer) openAnother(ctx context.Context) (*link, error) {
	closeCount := 0
	shouldRetry := func(err error) bool {
		if isClosed(err) {
			// The server closes connections if too many clients have not sent the token yet.
			closeCount++
			return closeCount <= maxEarlyCloses
		}

		return isBusy(err)
	}
	return callWithRetries(ctx, d.openOnce, shouldRetry)
}

// isTransient reports whether another attempt may succeed after err.
func isTransient(err error) bool {
	isOtherProgram := errors.Is(err, ErrProtocol)
	isTokenRefused := errors.Is(err, ErrToken)
	isOtherUser := errors.As(err, new(*PeerError))
	return !isOtherProgram && !isTokenRefused && !isOtherUser
}

// isBusy reports whether the accept queue of a Unix socket is full.
func isBusy(err error) bool { return errors.Is(err, syscall.EAGAIN) }

// callWithRetries repeats call, with pauses, until call succeeds or shouldRetry returns false. If
// ctx is done during a pause, callWithRetries returns the cause of ctx and the last error.
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

// The mean pause between attempts starts at firstBackoff and doubles up to maxBackoff.
const (
	firstBackoff = 10 * time.Millisecond
	maxBackoff   = 500 * time.Millisecond
)

// sleepWithJitter sleeps for 0.5 to 1.5 times pause, so that not all ranks retry at once. It
// returns false if ctx is done first.
func sleepWithJitter(ctx context.Context, pause time.Duration) bool {
	return sleep(ctx, pause/2+rand.N(pause))
}
