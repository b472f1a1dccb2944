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

// A link is a connection of a Client to the server. A call of the Client, such as Add, sends a
// request over it and reads the reply. This is called an exchange.
//
// Suppose that the context of the call is canceled while the reply is arriving. The exchange stops
// reading, so the link is incomplete: the next bytes on it belong to the old reply. Such a link
// must be closed. WAIT is an exception: if it is canceled, the client sends CANCEL_WAIT and reads
// the remaining replies, so that it can use the link again.

// link performs the exchanges of one connection. Only one call at a time uses it.
type link struct {
	conn    net.Conn
	decoder *decoder    // reads the replies from conn
	tail    *tailReader // keeps the last bytes that decoder has read from conn
	// isIncomplete is set while the reply to a request has not been read completely.
	isIncomplete bool
	// isAuthenticated is false while only the next reply can show whether the server requires a token.
	isAuthenticated bool
}

// pastDeadline makes all I/O of a connection return immediately.
var pastDeadline = time.Unix(1, 0)

// failIOAfter makes all I/O of the link fail when ctx is done. The caller must call stop. After
// stop, I/O works again.
func (l *link) failIOAfter(ctx context.Context) (stop func()) {
	hasSetDeadline := make(chan struct{})
	stopWaiting := context.AfterFunc(ctx, func() {
		defer close(hasSetDeadline)
		_ = l.conn.SetDeadline(pastDeadline)
	})
	return func() {
		hasCallbackStarted := !stopWaiting()
		if hasCallbackStarted {
			<-hasSetDeadline
			noDeadline := time.Time{}
			_ = l.conn.SetDeadline(noDeadline)
		}
	}
}

// exchange sends the encoded requests in b and calls readReply to read the replies. If ctx is done
// first, it returns the cause of ctx. If the connection has ended, it returns ErrLost. ErrProtocol
// and ErrToken come from readReply.
func (l *link) exchange(ctx context.Context, b []byte, readReply func(*decoder) error) error {
	stop := l.failIOAfter(ctx)
	defer stop()
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

	hasSentNothing := written == 0 && errors.Is(err, os.ErrDeadlineExceeded)
	if hasSentNothing {
		l.isIncomplete = wasIncomplete
	}

	return l.explainError(ctx, err)
}

// explainError returns the error of an exchange that failed with err.
func (l *link) explainError(ctx context.Context, err error) error {
	isDeadline := errors.Is(err, os.ErrDeadlineExceeded) // set by failIOAfter
	if isDeadline && ctx.Err() != nil {
		return context.Cause(ctx)
	}

	// A store that closes can send a mark without a request, which looks like a wrong reply.
	isProtocolError := errors.Is(err, ErrProtocol)
	mayHaveMark := isClosed(err) || isProtocolError
	switch {
	case mayHaveMark && l.drainToClosingMark():
		return fmt.Errorf("%w: %w", ErrLost, errLeft)
	case isProtocolError || errors.Is(err, ErrToken):
		return err
	case isClosed(err) && !l.isAuthenticated:
		return fmt.Errorf("%w: %w: %w", ErrToken, errClosedEarly, err)
	}

	return fmt.Errorf("%w: %w", ErrLost, err)
}

// errClosedEarly means that the server closed a connection before it was authenticated. The server
// requires a different token or is shutting down.
var errClosedEarly = errors.New(
	"the server closed the connection: it may require a token, or a different token")

// isClosed reports whether err means that the server has closed a connection.
func isClosed(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) ||
		errors.Is(err, io.ErrClosedPipe)
}

// newLink returns a link for a new connection. It counts as authenticated, because the server
// requires no token for the first requests.
func newLink(conn net.Conn, peer string) *link {
	tail := &tailReader{r: conn}
	return &link{conn: conn, decoder: newDecoder(tail, peer), tail: tail, isAuthenticated: true}
}

// handshake sends VALIDATE, and then the token, if there is one, on a new connection. It returns a
// link for the connection. If this fails, it closes the connection.
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

	// Without a token, only the next reply shows whether the server requires one.
	l.isAuthenticated = endpoint.Token != ""
	return l, nil
}

// sendValidate sends VALIDATE, the first request of a connection, and waits until the server has
// handled it.
func (l *link) sendValidate(ctx context.Context) error {
	validate := request{query: queryValidate, nonce: protocolMagic}
	// VALIDATE and PING are sent at once: old LibUV servers of PyTorch close the connection unless
	// VALIDATE arrives in one packet.
	b, readReply := appendPing(validate.encode(nil))
	return l.exchange(ctx, b, readReply)
}

// appendPing appends a PING to the requests in b, which have no replies. readReply reads the reply
// to the PING, which confirms that the server has handled all of the requests.
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
	return l.exchange(ctx, token.query().encode(nil), readTokenReply)
}

// readTokenReply reads the reply to a token, which has one byte.
func readTokenReply(d *decoder) error {
	reply, err := d.readU8()
	if err != nil {
		if isClosed(err) {
			return fmt.Errorf("%w: %w: %w", ErrToken, errClosedEarly, err)
		}

		return err
	}

	switch reply {
	case replyReady:
		return nil
	case replyNotReady:
		return ErrToken
	}

	return d.errorf("the token was answered with %#02x", reply)
}

// wait sends WAIT, and blocks until the keys are set. If ctx is done first, wait returns the cause
// of ctx. It then also sends CANCEL_WAIT, so that the link can be used again.
func (l *link) wait(ctx context.Context, keys []string) error {
	r := request{query: queryWait, keys: keys}
	isSent := false
	err := l.exchange(ctx, r.encode(nil), func(d *decoder) error {
		isSent = true
		return readWaitReply(d)
	})
	isCanceled := err != nil && ctx.Err() != nil
	isConnected := !errors.Is(err, ErrLost) && !errors.Is(err, ErrProtocol)
	if isCanceled && isSent && isConnected {
		return l.cancelWait(ctx)
	}

	return err
}

// readWaitReply reads the reply to WAIT, which has one byte.
func readWaitReply(d *decoder) error {
	reply, err := d.readU8()
	if err == nil && reply != replyWaitOver {
		return d.errorf("WAIT was answered with %#02x", reply)
	}

	return err
}

// cancelTimeout limits the exchange of CANCEL_WAIT, to which a running server replies at once.
const cancelTimeout = 2 * time.Second

// cancelWait sends CANCEL_WAIT after a WAIT and returns the cause of ctx. If the server replied to
// the WAIT before it received the CANCEL_WAIT, the keys are set and cancelWait returns nil.
func (l *link) cancelWait(ctx context.Context) error {
	cancelCtx, release := context.WithTimeout(context.WithoutCancel(ctx), cancelTimeout)
	defer release()
	isWaitOver := false
	r := request{query: queryCancelWait}
	err := l.exchange(cancelCtx, r.encode(nil), func(d *decoder) error {
		reply, err := d.readU8()
		if err == nil && reply == replyWaitOver { // The reply to CANCEL_WAIT follows.
			isWaitOver = true
			reply, err = d.readU8()
		}

		if err == nil && reply != replyCanceled {
			return d.errorf("CANCEL_WAIT was answered with %#02x", reply)
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
