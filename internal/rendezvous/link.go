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

// link is one of a Client's connections. It sends one request at a time. If its last reply is
// incomplete, the link must be closed.
type link struct {
	conn net.Conn
	d    *decoder
	// incomplete is set from the start of a request until its reply has been read completely. For a
	// canceled WAIT, that is the reply to CANCEL_WAIT.
	incomplete bool
	// authenticated is set when the server has answered a query that may require a token.
	authenticated bool
}

// pastDeadline makes every read and write of a connection return immediately.
var pastDeadline = time.Unix(1, 0)

const cancelTimeout = 2 * time.Second

// guard makes all I/O of the link fail when ctx is done, until release is called.
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

// exchange sends b and calls read to read the reply. It returns the cause of ctx if ctx was
// canceled, ErrLost if the connection was lost, and otherwise the error of read.
func (l *link) exchange(ctx context.Context, b []byte, read func(*decoder) error) error {
	release := l.guard(ctx)
	defer release()
	previous := l.incomplete
	l.incomplete = true
	n, err := l.conn.Write(b)
	if err == nil {
		err = read(l.d)
	}
	if err == nil {
		l.authenticated, l.incomplete = true, false
		return nil
	}
	if n == 0 && errors.Is(err, os.ErrDeadlineExceeded) {
		l.incomplete = previous
	}
	return l.classify(ctx, err)
}

func (l *link) classify(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, ErrProtocol), errors.Is(err, ErrToken):
		return err
	case !l.authenticated && isClosed(err):
		return fmt.Errorf("%w: %w: %w", ErrToken, errClosedEarly, err)
	}
	return fmt.Errorf("%w: %w", ErrLost, err)
}

// errClosedEarly means that the server closed the connection at the first query, because it
// requires a different token or is shutting down.
var errClosedEarly = errors.New(
	"the server closed the connection: it may require a token, or another token")

func isClosed(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) ||
		errors.Is(err, io.ErrClosedPipe)
}

func handshake(ctx context.Context, conn net.Conn, endpoint Endpoint) (*link, error) {
	l := &link{conn: conn, d: newDecoder(conn, endpoint.Address), authenticated: true}
	err := l.greet(ctx)
	if err == nil && endpoint.Token != "" {
		err = l.authenticate(ctx, endpoint.Token)
	}
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("handshake with the store: %w", err)
	}
	// Without a token, only the answer to the first query shows whether the server requires one.
	l.authenticated = endpoint.Token != ""
	return l, nil
}

func (l *link) greet(ctx context.Context) error {
	// Old LibUV servers close the connection when VALIDATE arrives in pieces.
	b := (&request{query: queryValidate, nonce: magic}).append(nil)
	b, read := appendPing(b)
	return l.exchange(ctx, b, read)
}

// appendPing appends a PING to b, and returns a function that reads the answer. A server handles
// queries in order, so the answer confirms all earlier ones.
func appendPing(b []byte) (_ []byte, read func(*decoder) error) {
	nonce := rand.Uint32()
	b = (&request{query: queryPing, nonce: nonce}).append(b)
	return b, func(d *decoder) error {
		got, err := d.u32()
		if err == nil && got != nonce {
			return d.errorf("PING %#08x was answered with %#08x", nonce, got)
		}
		return err
	}
}

func (l *link) authenticate(ctx context.Context, token Token) error {
	return l.exchange(ctx, token.query().append(nil), func(d *decoder) error {
		b, err := d.u8()
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

// wait sends a WAIT and blocks until the keys are set. If ctx is done first, wait cancels the WAIT
// and returns the cause of ctx.
func (l *link) wait(ctx context.Context, keys []string) error {
	r := request{query: queryWait, keys: keys}
	answered := false
	err := l.exchange(ctx, r.append(nil), func(d *decoder) error {
		answered = true
		return readStop(d)
	})
	if err == nil || !answered || ctx.Err() == nil ||
		errors.Is(err, ErrLost) || errors.Is(err, ErrProtocol) {
		return err
	}
	return l.cancel(ctx)
}

func readStop(d *decoder) error {
	b, err := d.u8()
	if err == nil && b != replyStop {
		return d.errorf("WAIT was answered with %#02x", b)
	}
	return err
}

// cancel cancels a WAIT whose context is done. It returns the cause of ctx, or nil if the keys were
// set before the server received the cancellation.
func (l *link) cancel(ctx context.Context) error {
	cancelCtx, release := context.WithTimeout(context.WithoutCancel(ctx), cancelTimeout)
	defer release()
	stopped := false
	r := request{query: queryCancelWait}
	err := l.exchange(cancelCtx, r.append(nil), func(d *decoder) error {
		b, err := d.u8()
		if err == nil && b == replyStop {
			stopped = true
			b, err = d.u8()
		}
		if err == nil && b != replyCanceled {
			return d.errorf("CANCEL_WAIT was answered with %#02x", b)
		}
		return err
	})
	switch {
	case err != nil:
		return errors.Join(context.Cause(ctx), err)
	case stopped:
		return nil
	}
	return context.Cause(ctx)
}
