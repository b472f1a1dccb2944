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

// link is a connection of a Client to the server. One call at a time uses it for an exchange: the
// call sends a request and reads the reply.
//
// If an exchange is canceled during the reply, the link must be closed, because the next call would
// read the rest of that reply. Only a WAIT can be canceled without closing the link: the call sends
// CANCEL_WAIT and reads all replies.
type link struct {
	conn    net.Conn
	decoder *decoder    // reads the replies from conn
	tail    *tailReader // keeps the last bytes that decoder has read from conn

	isIncomplete bool // The reply to a request has not been read completely.
	// mayNeedToken is true after a handshake without a token, until the first reply shows that the
	// server requires none.
	mayNeedToken bool
}

// pastDeadline makes all I/O of a connection return immediately.
var pastDeadline = time.Unix(1, 0)

// failIOAfter makes the link's I/O fail when ctx is done. The caller must call stop, which makes
// I/O work again.
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

// exchange sends encoded requests and reads the replies with readReply. It returns the cause of ctx
// if ctx is done first, or ErrLost if the connection has ended.
func (l *link) exchange(
	ctx context.Context, requests []byte, readReply func(*decoder) error,
) error {
	stop := l.failIOAfter(ctx)
	defer stop()
	wasIncomplete := l.isIncomplete
	l.isIncomplete = true
	written, err := l.conn.Write(requests)
	if err == nil {
		err = readReply(l.decoder)
	}

	if err == nil {
		l.isIncomplete = false
		l.mayNeedToken = false
		return nil
	}

	hasSentNothing := written == 0 && errors.Is(err, os.ErrDeadlineExceeded)
	if hasSentNothing {
		l.isIncomplete = wasIncomplete
	}

	return l.explainError(ctx, err)
}

// explainError returns the error of an exchange whose I/O or readReply failed with err.
func (l *link) explainError(ctx context.Context, err error) error {
	hitDeadline := errors.Is(err, os.ErrDeadlineExceeded) // set by failIOAfter
	if hitDeadline && ctx.Err() != nil {
		return context.Cause(ctx)
	}

	isProtocolError := errors.Is(err, ErrProtocol)
	if isClosed(err) || isProtocolError {
		// A closing store sends a mark without a request, so the mark looks like a wrong reply.
		hasMark := l.drainToClosingMark()
		if hasMark {
			return fmt.Errorf("%w: %w", ErrLost, errLeft)
		}
	}

	switch {
	case isProtocolError || errors.Is(err, ErrToken):
		return err
	case isClosed(err) && l.mayNeedToken:
		return fmt.Errorf("%w: %w: %w", ErrToken, errClosedEarly, err)
	}

	return fmt.Errorf("%w: %w", ErrLost, err)
}

// errClosedEarly means that the server closed a connection before authentication, because it
// requires a different token or is shutting down.
var errClosedEarly = errors.New(
	"the server closed the connection: it may require a token, or a different token")

// isClosed reports whether err means that the server has closed a connection.
func isClosed(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) ||
		errors.Is(err, io.ErrClosedPipe)
}

// newLink returns a link for a new connection. Errors name peer, the server's address.
func newLink(conn net.Conn, peer string) *link {
	tail := &tailReader{r: conn}
	return &link{conn: conn, decoder: newDecoder(tail, peer), tail: tail}
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

// sendValidate sends VALIDATE, the first request of a connection.
func (l *link) sendValidate(ctx context.Context) error {
	validate := request{query: queryValidate, nonce: protocolMagic}
	// One write sends both requests, because old LibUV servers of PyTorch close the connection unless
	// VALIDATE arrives in one packet.
	validateAndPing, readReply := appendPing(validate.encode(nil))
	return l.exchange(ctx, validateAndPing, readReply)
}

// appendPing appends a PING to requests without replies. The reply to the PING confirms them.
func appendPing(requests []byte) (_ []byte, readReply func(*decoder) error) {
	nonce := rand.Uint32()
	ping := request{query: queryPing, nonce: nonce}
	readReply = func(d *decoder) error {
		got, err := d.readU32()
		if err == nil && got != nonce {
			return d.errorf("PING %#08x was answered with %#08x", nonce, got)
		}

		return err
	}
	return ping.encode(requests), readReply
}

// authenticate returns ErrToken if the server requires a different token.
func (l *link) authenticate(ctx context.Context, token Token) error {
	return l.exchange(ctx, token.authRequest().encode(nil), readTokenReply)
}

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

// wait blocks until the keys are set. If ctx is done first, it tries to keep the link usable by
// canceling the WAIT.
func (l *link) wait(ctx context.Context, keys []string) error {
	r := request{query: queryWait, keys: keys}
	isSent := false
	err := l.exchange(ctx, r.encode(nil), func(d *decoder) error {
		isSent = true // exchange has written the whole request.
		return readWaitReply(d)
	})
	isInterrupted := err != nil && ctx.Err() != nil
	isLinkBroken := errors.Is(err, ErrLost) || errors.Is(err, ErrProtocol)
	if isInterrupted && isSent && !isLinkBroken {
		return l.cancelWait(ctx)
	}

	return err
}

func readWaitReply(d *decoder) error {
	reply, err := d.readU8()
	if err == nil && reply != replyWaitOver {
		return d.errorf("WAIT was answered with %#02x", reply)
	}

	return err
}

// cancelTimeout limits a CANCEL_WAIT. A running server replies at once.
const cancelTimeout = 2 * time.Second

// cancelWait cancels a WAIT and returns the cause of ctx. It returns nil if the server has already
// replied to the WAIT, because the keys are then set.
func (l *link) cancelWait(ctx context.Context) error {
	cancelCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelTimeout)
	defer cancel()
	isWaitOver := false
	r := request{query: queryCancelWait}
	err := l.exchange(cancelCtx, r.encode(nil), func(d *decoder) (readErr error) {
		isWaitOver, readErr = readCancelReplies(d)
		return readErr
	})
	switch {
	case err != nil:
		return errors.Join(context.Cause(ctx), err)
	case isWaitOver:
		return nil
	}

	return context.Cause(ctx)
}

// readCancelReplies reads the reply to CANCEL_WAIT. If the WAIT is over, its reply comes first.
func readCancelReplies(d *decoder) (isWaitOver bool, err error) {
	reply, err := d.readU8()
	isWaitOver = err == nil && reply == replyWaitOver
	if isWaitOver {
		reply, err = d.readU8()
	}

	if err == nil && reply != replyCanceled {
		return isWaitOver, d.errorf("CANCEL_WAIT was answered with %#02x", reply)
	}

	return isWaitOver, err
}
