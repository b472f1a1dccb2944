package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"syscall"
	"time"
)

// link is a connection of a Client. It is used by one request at a time.
type link struct {
	conn    net.Conn
	decoder *decoder
	tail    *tailReader // records the last bytes that decoder has read
	// isIncomplete is set while the reply to a request has not been read completely. A link that
	// remains incomplete must be closed.
	isIncomplete bool
	// isAuthenticated is set after the first answer to a query for which the server may require a
	// token.
	isAuthenticated bool
}

// pastDeadline makes all I/O of a connection return immediately.
var pastDeadline = time.Unix(1, 0)

// cancelTimeout limits the exchange of CANCEL_WAIT.
const cancelTimeout = 2 * time.Second

// guard makes all I/O of the link fail when ctx is done. The caller must call release, after which
// I/O works again.
func (l *link) guard(ctx context.Context) (release func()) {
	done := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(done)
		_ = l.conn.SetDeadline(pastDeadline)
	})
	return func() {
		if !stop() {
			<-done
			_ = l.conn.SetDeadline(time.Time{})
		}
	}
}

// exchange sends the encoded requests in b and calls readReply to read the replies. It returns the
// cause of a canceled ctx, ErrLost if the connection has ended, or ErrProtocol or ErrToken from
// readReply.
func (l *link) exchange(ctx context.Context, b []byte, readReply func(*decoder) error) error {
	release := l.guard(ctx)
	defer release()
	wasIncomplete := l.isIncomplete
	l.isIncomplete = true
	written, err := l.conn.Write(b)
	if err == nil {
		err = readReply(l.decoder)
	}
	if err == nil {
		l.isAuthenticated, l.isIncomplete = true, false
		return nil
	}
	if written == 0 && errors.Is(err, os.ErrDeadlineExceeded) {
		l.isIncomplete = wasIncomplete // The server has received nothing.
	}
	return l.explainError(ctx, err)
}

// explainError returns the error of an exchange whose I/O failed with err.
func (l *link) explainError(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() != nil:
		return context.Cause(ctx)
	case (isClosed(err) || errors.Is(err, ErrProtocol)) && l.hasClosingMark():
		return fmt.Errorf("%w: %w", ErrLost, errLeft)
	case errors.Is(err, ErrProtocol), errors.Is(err, ErrToken):
		return err
	case !l.isAuthenticated && isClosed(err):
		return fmt.Errorf("%w: %w: %w", ErrToken, errClosedEarly, err)
	}
	return fmt.Errorf("%w: %w", ErrLost, err)
}

// errClosedEarly means that the server closed a connection before it was authenticated. The server
// requires a different token or is shutting down.
var errClosedEarly = errors.New(
	"the server closed the connection: it may require a token, or a different token")

// isClosed reports whether err means that the peer has closed a connection.
func isClosed(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) ||
		errors.Is(err, io.ErrClosedPipe)
}

func newLink(conn net.Conn, peer string) *link {
	tail := &tailReader{r: conn}
	return &link{conn: conn, decoder: newDecoder(tail, peer), tail: tail, isAuthenticated: true}
}

// handshake sends VALIDATE and the token on a new connection, and waits for the answers. It closes
// the connection if it fails.
func handshake(ctx context.Context, conn net.Conn, endpoint Endpoint) (*link, error) {
	l := newLink(conn, endpoint.Address)
	err := l.sendHandshake(ctx)
	if err == nil && endpoint.Token != "" {
		err = l.authenticate(ctx, endpoint.Token)
	}
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("handshake with the store: %w", err)
	}
	// Without a token, only the answer to the first query shows whether the server requires one.
	l.isAuthenticated = endpoint.Token != ""
	return l, nil
}

// sendHandshake sends VALIDATE, which has no answer, and a PING, which has one.
func (l *link) sendHandshake(ctx context.Context) error {
	// Old LibUV servers of PyTorch close the connection unless VALIDATE arrives in one packet.
	b := (&request{query: queryValidate, nonce: protocolMagic}).encode(nil)
	b, readReply := appendPing(b)
	return l.exchange(ctx, b, readReply)
}

// appendPing appends a PING to the queries in b. readReply reads its answer, which confirms that
// the server has handled the queries.
func appendPing(b []byte) (_ []byte, readReply func(*decoder) error) {
	nonce := rand.Uint32()
	b = (&request{query: queryPing, nonce: nonce}).encode(b)
	return b, func(d *decoder) error {
		got, err := d.readU32()
		if err == nil && got != nonce {
			return d.errorf("PING %#08x was answered with %#08x", nonce, got)
		}
		return err
	}
}

// authenticate sends the token. It returns ErrToken if the server requires another one.
func (l *link) authenticate(ctx context.Context, token Token) error {
	return l.exchange(ctx, token.query().encode(nil), func(d *decoder) error {
		b, err := d.readU8()
		switch {
		case err == nil && b == replyNotReady:
			return ErrToken
		case err == nil && b != replyReady:
			return d.errorf("the token was answered with %#02x", b)
		case err != nil && isClosed(err):
			return fmt.Errorf("%w: %w: %w", ErrToken, errClosedEarly, err)
		}
		return err
	})
}

// wait blocks until the keys are set. If ctx is done first, wait sends CANCEL_WAIT, so that the
// link remains usable, and returns the cause of ctx.
func (l *link) wait(ctx context.Context, keys []string) error {
	r := request{query: queryWait, keys: keys}
	isSent := false
	err := l.exchange(ctx, r.encode(nil), func(d *decoder) error {
		isSent = true
		return readWaitAnswer(d)
	})
	isLinkUsable := !errors.Is(err, ErrLost) && !errors.Is(err, ErrProtocol)
	if err != nil && ctx.Err() != nil && isSent && isLinkUsable {
		return l.cancelWait(ctx)
	}
	return err
}

// readWaitAnswer reads the answer to WAIT, which has one byte.
func readWaitAnswer(d *decoder) error {
	b, err := d.readU8()
	if err == nil && b != replyWaitOver {
		return d.errorf("WAIT was answered with %#02x", b)
	}
	return err
}

// cancelWait sends CANCEL_WAIT and returns the cause of ctx. It returns nil if the keys were set
// before the server received the cancellation, because the server has then answered the WAIT.
func (l *link) cancelWait(ctx context.Context) error {
	cancelCtx, release := context.WithTimeout(context.WithoutCancel(ctx), cancelTimeout)
	defer release()
	isWaitOver := false
	r := request{query: queryCancelWait}
	err := l.exchange(cancelCtx, r.encode(nil), func(d *decoder) error {
		b, err := d.readU8()
		if err == nil && b == replyWaitOver {
			isWaitOver = true
			b, err = d.readU8()
		}
		if err == nil && b != replyCanceled {
			return d.errorf("CANCEL_WAIT was answered with %#02x", b)
		}
		return err
	})
	switch {
	case err != nil:
		return errors.Join(context.Cause(ctx), err)
	case isWaitOver:
		return nil
	}
	return context.Cause(ctx)
}
