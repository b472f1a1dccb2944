package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"syscall"

	"symmem/internal/sys"
)

// Dial connects to a store. The caller must close the client.
//
// The store may not exist yet, so Dial retries until ctx is done, or for DefaultTimeout if ctx has
// no deadline. It does not retry after ErrToken, ErrProtocol or a PeerError.
func Dial(ctx context.Context, endpoint Endpoint) (*Client, error) {
	return dial(ctx, endpoint, uint32(os.Geteuid()))
}

// dial implements Dial. The server of a Unix socket must run as the user uid.
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
	c.addIdle(firstLink)
	return c, nil
}

// dialer opens connections to one store.
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

// openFirst opens a connection to a store that may not exist yet. If any attempt lost its
// connection, the error matches ErrLost.
func (d *dialer) openFirst(ctx context.Context) (*link, error) {
	hasLostStore := false
	shouldRetry := func(err error) bool {
		hasLostStore = hasLostStore || errors.Is(err, ErrLost)
		return isTransient(err)
	}
	l, err := callWithRetries(ctx, d.openOnce, shouldRetry)
	if err != nil && hasLostStore && !errors.Is(err, ErrLost) {
		err = fmt.Errorf("%w; an earlier attempt: %w", err, ErrLost)
	}

	return l, err
}

// isTransient reports whether another attempt may succeed after err.
func isTransient(err error) bool {
	isPermanent := errors.Is(err, ErrToken) || errors.Is(err, ErrProtocol) ||
		errors.As(err, new(*PeerError))
	return !isPermanent
}

// openAnother opens a further connection. It retries only if the server may be overloaded.
func (d *dialer) openAnother(ctx context.Context) (*link, error) {
	const maxCloses = 3
	closeCount := 0
	shouldRetry := func(err error) bool {
		if isClosed(err) {
			// The server may have too many unauthenticated sessions.
			closeCount++
			return closeCount <= maxCloses
		}

		isQueueFull := errors.Is(err, syscall.EAGAIN) // on a Unix socket
		return isQueueFull
	}
	return callWithRetries(ctx, d.openOnce, shouldRetry)
}

// handshake sends VALIDATE and any token on a new connection, and returns a link for it. After an
// error, it closes the connection.
func handshake(ctx context.Context, conn net.Conn, endpoint Endpoint) (*link, error) {
	l := newLink(conn, endpoint.Address)
	err := l.sendValidate(ctx)
	if err == nil && endpoint.Token != "" {
		err = l.authenticate(ctx, endpoint.Token)
	}

	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("handshake with the store: %w", err)
	}

	l.mayNeedToken = endpoint.Token == ""
	return l, nil
}

// sendValidate sends VALIDATE, the first request of a connection, and a PING that confirms it.
func (l *link) sendValidate(ctx context.Context) error {
	validate := request{query: queryValidate, nonce: protocolMagic}
	// Old LibUV servers of PyTorch require that VALIDATE arrives in one packet.
	validateAndPing, readPingReply := appendPing(validate.encode(nil))
	return l.exchange(ctx, validateAndPing, readPingReply)
}

// appendPing appends a PING to requests that have no replies. readPingReply checks the reply to the
// PING, which confirms them.
func appendPing(requests []byte) (withPing []byte, readPingReply func(*decoder) error) {
	nonce := rand.Uint32()
	ping := request{query: queryPing, nonce: nonce}
	readPingReply = func(d *decoder) error {
		got, err := d.readU32()
		if err == nil && got != nonce {
			return d.errorf("PING %#08x was answered with %#08x", nonce, got)
		}

		return err
	}
	return ping.encode(requests), readPingReply
}

// authenticate returns ErrToken if the server requires a different token.
func (l *link) authenticate(ctx context.Context, token Token) error {
	return l.exchange(ctx, token.authRequest().encode(nil), readTokenReply)
}

func readTokenReply(d *decoder) error {
	reply, err := d.r.ReadByte()
	switch {
	case err != nil && isClosed(err):
		return fmt.Errorf("%w: %w: %w", ErrToken, errClosedEarly, err)
	case err != nil:
		return err
	case reply == replyReady:
		return nil
	case reply == replyNotReady:
		return ErrToken
	}

	return d.errorf("the token was answered with %#02x", reply)
}
