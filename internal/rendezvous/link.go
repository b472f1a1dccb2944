package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"
)

// link is a connection of a Client to the server. One call at a time uses it for an exchange: the
// call sends a request and reads the reply.
type link struct {
	conn    net.Conn
	decoder *decoder    // reads the replies from conn
	tail    *tailReader // finds closingMark at the end of decoder's input

	// hasPendingReply is true if the reply to a request has not been read completely. Another call
	// must not use the link then.
	hasPendingReply bool
	// mayNeedToken is true after a handshake without a token, until the first reply shows that the
	// server requires none.
	mayNeedToken bool
}

// newLink returns a link for a new connection. Errors name peer, the server's address.
func newLink(conn net.Conn, peer string) *link {
	tail := &tailReader{r: conn}
	return &link{conn: conn, decoder: newDecoder(tail, peer), tail: tail}
}

// exchange sends encoded requests and reads the replies with readReply. It returns the cause of ctx
// if ctx is done first, or ErrLost if the connection has ended.
func (l *link) exchange(
	ctx context.Context, requests []byte, readReply func(*decoder) error,
) error {
	stop := l.failIOAfter(ctx)
	defer stop()
	written, err := l.conn.Write(requests)
	hasSentNothing := written == 0 && errors.Is(err, os.ErrDeadlineExceeded)
	if !hasSentNothing {
		l.hasPendingReply = true
	}

	if err == nil {
		err = readReply(l.decoder)
	}

	if err == nil {
		l.hasPendingReply = false
		l.mayNeedToken = false
		return nil
	}

	return l.explainError(ctx, err)
}

// failIOAfter makes the link's I/O fail when ctx is done. The caller must call stop, after which
// I/O works again.
func (l *link) failIOAfter(ctx context.Context) (stop func()) {
	deadlineSet := make(chan struct{})
	cancel := context.AfterFunc(ctx, func() {
		defer close(deadlineSet)
		_ = l.conn.SetDeadline(pastDeadline)
	})
	return func() {
		isCtxDone := !cancel()
		if !isCtxDone {
			return
		}

		<-deadlineSet
		noDeadline := time.Time{}
		_ = l.conn.SetDeadline(noDeadline)
	}
}

// pastDeadline makes all I/O of a connection return immediately.
var pastDeadline = time.Unix(1, 0)

// explainError returns the error of an exchange whose I/O or readReply failed with err.
func (l *link) explainError(ctx context.Context, err error) error {
	isInterrupted := errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() != nil
	if isInterrupted {
		return context.Cause(ctx)
	}

	isWrongReply := errors.Is(err, ErrProtocol) // The reply may be closingMark.
	if isClosed(err) || isWrongReply {
		hasMark := l.drainToClosingMark()
		if hasMark {
			return fmt.Errorf("%w: %w", ErrLost, errLeft)
		}
	}

	switch {
	case isWrongReply || errors.Is(err, ErrToken):
		return err
	case isClosed(err) && l.mayNeedToken:
		return fmt.Errorf("%w: %w: %w", ErrToken, errClosedEarly, err)
	}

	return fmt.Errorf("%w: %w", ErrLost, err)
}

// errClosedEarly means that the server closed a connection during the handshake. It may require a
// token or be shutting down.
var errClosedEarly = errors.New(
	"the server closed the connection: it may require a token, or a different token")

// isClosed reports whether err means that the server has closed a connection.
func isClosed(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) ||
		errors.Is(err, io.ErrClosedPipe)
}

// wait blocks until the keys are set. If ctx is done first, it cancels the WAIT, so that the link
// remains usable.
func (l *link) wait(ctx context.Context, keys []string) error {
	r := request{query: queryWait, keys: keys}
	isSent := false
	err := l.exchange(ctx, r.encode(nil), func(d *decoder) error {
		isSent = true
		return readWaitReply(d)
	})
	isLinkBroken := errors.Is(err, ErrLost) || errors.Is(err, ErrProtocol)
	canCancel := isSent && !isLinkBroken
	if err != nil && ctx.Err() != nil && canCancel {
		return l.cancelWait(ctx)
	}

	return err
}

func readWaitReply(d *decoder) error {
	reply, err := d.r.ReadByte()
	if err == nil && reply != replyWaitOver {
		return d.errorf("WAIT was answered with %#02x", reply)
	}

	return err
}

// cancelTimeout limits a CANCEL_WAIT. A running server replies at once.
const cancelTimeout = 2 * time.Second

// cancelWait cancels a WAIT and returns the cause of ctx, or nil if the keys have been set
// meanwhile.
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
	reply, err := d.r.ReadByte()
	isWaitOver = err == nil && reply == replyWaitOver
	if isWaitOver {
		reply, err = d.r.ReadByte()
	}

	if err == nil && reply != replyCanceled {
		return isWaitOver, d.errorf("CANCEL_WAIT was answered with %#02x", reply)
	}

	return isWaitOver, err
}

// The server sends closingMark to each rank before it closes normally. A rank whose process was
// suspended may miss the announcement (IsStoreClosing), but reads the mark when it resumes.
const closingMark = "\xffthe store closes"

// errLeft means that the store has sent closingMark.
var errLeft = errors.New("the process that served it has left")

// tailReader keeps the last bytes that were read, up to the length of closingMark.
type tailReader struct {
	r    io.Reader
	tail []byte
}

func (t *tailReader) Read(b []byte) (int, error) {
	n, err := t.r.Read(b)
	lastBytes := b[max(0, n-len(closingMark)):n]
	t.tail = append(t.tail, lastBytes...)
	extraBytes := len(t.tail) - len(closingMark)
	if extraBytes > 0 {
		t.tail = append(t.tail[:0], t.tail[extraBytes:]...) // keeps only the end
	}

	return n, err
}

// drainTimeout bounds drainToClosingMark.
const drainTimeout = 100 * time.Millisecond

// drainToClosingMark reads the rest of a failed connection's input, and reports whether the input
// ends with closingMark.
func (l *link) drainToClosingMark() bool {
	_ = l.conn.SetReadDeadline(time.Now().Add(drainTimeout))
	_, _ = io.Copy(io.Discard, io.LimitReader(l.decoder.r, maxValueBytes))
	return string(l.tail.tail) == closingMark
}
