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

// link is a connection of a Client. It sends one request at a time.
type link struct {
	conn    net.Conn
	decoder *decoder
	tail    *tailReader // of decoder
	// isIncomplete is set until the last reply has been read completely. An incomplete link must be
	// closed.
	isIncomplete bool
	// isAuthenticated is set after the first answer to a query that may require a token.
	isAuthenticated bool
}

// pastDeadline makes all I/O of a connection return immediately.
var pastDeadline = time.Unix(1, 0)

const cancelTimeout = 2 * time.Second

// guard makes all I/O of the link fail while ctx is done, until release is called.
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

// exchange returns the cause of a canceled ctx, ErrLost, or the error of readReply.
func (l *link) exchange(ctx context.Context, b []byte, readReply func(*decoder) error) error {
	release := l.guard(ctx)
	defer release()
	wasIncomplete := l.isIncomplete
	l.isIncomplete = true
	n, err := l.conn.Write(b)
	if err == nil {
		err = readReply(l.decoder)
	}
	if err == nil {
		l.isAuthenticated, l.isIncomplete = true, false
		return nil
	}
	if n == 0 && errors.Is(err, os.ErrDeadlineExceeded) {
		l.isIncomplete = wasIncomplete
	}
	return l.explainError(ctx, err)
}

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

// The server requires a different token or is shutting down.
var errClosedEarly = errors.New(
	"the server closed the connection: it may require a token, or a different token")

func isClosed(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) ||
		errors.Is(err, io.ErrClosedPipe)
}

func newLink(conn net.Conn, peer string) *link {
	tail := &tailReader{r: conn}
	return &link{conn: conn, decoder: newDecoder(tail, peer), tail: tail, isAuthenticated: true}
}

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

func (l *link) sendHandshake(ctx context.Context) error {
	// Old LibUV servers of PyTorch close the connection unless VALIDATE arrives in one packet.
	b := (&request{query: queryValidate, nonce: protocolMagic}).encode(nil)
	b, readReply := appendPing(b)
	return l.exchange(ctx, b, readReply)
}

// appendPing appends a PING to b. Its answer confirms all earlier queries.
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

// wait blocks until the keys are set. If ctx is done first, wait cancels the WAIT and returns the
// cause of ctx.
func (l *link) wait(ctx context.Context, keys []string) error {
	r := request{query: queryWait, keys: keys}
	isAnswered := false
	err := l.exchange(ctx, r.encode(nil), func(d *decoder) error {
		isAnswered = true
		return readWaitAnswer(d)
	})
	if err == nil || !isAnswered || ctx.Err() == nil ||
		errors.Is(err, ErrLost) || errors.Is(err, ErrProtocol) {
		return err
	}
	return l.cancelWait(ctx)
}

func readWaitAnswer(d *decoder) error {
	b, err := d.readU8()
	if err == nil && b != replyWaitOver {
		return d.errorf("WAIT was answered with %#02x", b)
	}
	return err
}

// cancelWait returns nil if the keys were set before the server received the cancellation.
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
