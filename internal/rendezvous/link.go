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

// link is a connection of a Client to the server. Only one request at a time uses it.
type link struct {
	conn    net.Conn
	decoder *decoder    // reads the replies from conn
	tail    *tailReader // keeps the last bytes that decoder has read from conn
	// isIncomplete is set while the reply to a request has not been read completely. A link that
	// remains incomplete must be closed.
	isIncomplete bool
	// isAuthenticated is set after the server has answered a query that may require a token.
	isAuthenticated bool
}

// pastDeadline makes all I/O of a connection return immediately.
var pastDeadline = time.Unix(1, 0)

// cancelTimeout limits the exchange of CANCEL_WAIT, which a running server answers at once.
const cancelTimeout = 2 * time.Second

// guard makes all I/O of the link fail when ctx is done. The caller must call release. After
// release, I/O works again.
func (l *link) guard(ctx context.Context) (release func()) {
	expired := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(expired)
		_ = l.conn.SetDeadline(pastDeadline)
	})
	return func() {
		isStopped := stop()
		if !isStopped { // The function above has started. It sets the deadline.
			<-expired
			_ = l.conn.SetDeadline(time.Time{})
		}
	}
}

// exchange sends the encoded requests in b and calls readReply to read the replies. If ctx is done
// first, it returns the cause of ctx. If the connection has ended, it returns ErrLost. ErrProtocol
// and ErrToken come from readReply.
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
		l.isIncomplete = false
		l.isAuthenticated = true
		return nil
	}

	if written == 0 && errors.Is(err, os.ErrDeadlineExceeded) {
		l.isIncomplete = wasIncomplete // The server has received nothing.
	}

	return l.explainError(ctx, err)
}

// explainError returns the error of an exchange whose I/O failed with err.
func (l *link) explainError(ctx context.Context, err error) error {
	isExpired := errors.Is(err, os.ErrDeadlineExceeded) // guard sets the deadline.
	isProtocolError := errors.Is(err, ErrProtocol)
	switch {
	case isExpired && ctx.Err() != nil:
		return context.Cause(ctx)
	case (isClosed(err) || isProtocolError) && l.drainToClosingMark():
		// A closing store sends a mark without a request, so the mark looks like a wrong reply.
		return fmt.Errorf("%w: %w", ErrLost, errLeft)
	case isProtocolError || errors.Is(err, ErrToken):
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

// newLink returns a link for a new connection. It counts as authenticated, because the handshake
// requires no token.
func newLink(conn net.Conn, peer string) *link {
	tail := &tailReader{r: conn}
	return &link{conn: conn, decoder: newDecoder(tail, peer), tail: tail, isAuthenticated: true}
}

// handshake sends VALIDATE and the token on a new connection, and waits for the answers. If this
// fails, it closes the connection.
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
	// Both are sent at once: old LibUV servers of PyTorch close the connection unless VALIDATE
	// arrives in one packet.
	validate := request{query: queryValidate, nonce: protocolMagic}
	b, readReply := appendPing(validate.encode(nil))
	return l.exchange(ctx, b, readReply)
}

// appendPing appends a PING to the queries in b. readReply reads the answer to the PING. The answer
// confirms that the server has handled all of the queries.
func appendPing(b []byte) (_ []byte, readReply func(*decoder) error) {
	nonce := rand.Uint32()
	ping := request{query: queryPing, nonce: nonce}
	readReply = func(d *decoder) error {
		got, err := d.readU32()
		if err == nil && got != nonce {
			return d.errorf("PING %#08x was answered with %#08x", nonce, got)
		}

		return err
	}
	return ping.encode(b), readReply
}

// authenticate sends the token. It returns ErrToken if the server requires a different token.
func (l *link) authenticate(ctx context.Context, token Token) error {
	return l.exchange(ctx, token.query().encode(nil), readTokenAnswer)
}

// readTokenAnswer reads the answer to a token, which has one byte.
func readTokenAnswer(d *decoder) error {
	answer, err := d.readU8()
	if err != nil {
		if isClosed(err) {
			return fmt.Errorf("%w: %w: %w", ErrToken, errClosedEarly, err)
		}

		return err
	}

	switch answer {
	case replyReady:
		return nil
	case replyNotReady:
		return ErrToken
	}

	return d.errorf("the token was answered with %#02x", answer)
}

// wait blocks until the keys are set. If ctx is done first, wait returns the cause of ctx. It then
// also sends CANCEL_WAIT, so that the link remains usable.
func (l *link) wait(ctx context.Context, keys []string) error {
	r := request{query: queryWait, keys: keys}
	isSent := false
	err := l.exchange(ctx, r.encode(nil), func(d *decoder) error {
		isSent = true
		return readWaitAnswer(d)
	})
	isCanceled := err != nil && ctx.Err() != nil
	isLinkUsable := !errors.Is(err, ErrLost) && !errors.Is(err, ErrProtocol)
	if isCanceled && isSent && isLinkUsable {
		return l.cancelWait(ctx)
	}

	return err
}

// readWaitAnswer reads the answer to WAIT, which has one byte.
func readWaitAnswer(d *decoder) error {
	answer, err := d.readU8()
	if err == nil && answer != replyWaitOver {
		return d.errorf("WAIT was answered with %#02x", answer)
	}

	return err
}

// cancelWait sends CANCEL_WAIT after a WAIT and returns the cause of ctx. If the server answered
// the WAIT before it received the cancellation, the keys are set and cancelWait returns nil.
func (l *link) cancelWait(ctx context.Context) error {
	cancelCtx, release := context.WithTimeout(context.WithoutCancel(ctx), cancelTimeout)
	defer release()
	isWaitOver := false
	r := request{query: queryCancelWait}
	err := l.exchange(cancelCtx, r.encode(nil), func(d *decoder) error {
		answer, err := d.readU8()
		if err == nil && answer == replyWaitOver {
			// This is the answer to the WAIT. The answer to CANCEL_WAIT follows it.
			isWaitOver = true
			answer, err = d.readU8()
		}

		if err == nil && answer != replyCanceled {
			return d.errorf("CANCEL_WAIT was answered with %#02x", answer)
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
