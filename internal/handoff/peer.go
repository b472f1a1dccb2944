package handoff

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"symmem/internal/sys"
)

// Peer is a connection to another process's Server. It is safe for concurrent use.
//
// After a request fails or times out, the Peer closes the connection: a late response must not be
// taken for that to the next request, which reconnects.
type Peer struct {
	address string
	token   Token
	pid     int
	pidfd   *os.File // see Watch

	request chan struct{} // contains a value while no request is in progress

	mu     sync.Mutex
	conn   *net.UnixConn // nil while disconnected; guarded by mu
	closed bool          // guarded by mu
}

// Dial connects to a Server of the same user.
func Dial(ctx context.Context, address string, token Token) (*Peer, error) {
	conn, pid, err := dial(ctx, address)
	if err != nil {
		return nil, err
	}
	// The connection is open, so the process is alive and its ID has not been reused.
	pidfd, err := sys.Pidfd(pid)
	if err != nil {
		conn.Close()
		return nil, err
	}
	p := &Peer{
		address: address, token: token, pid: pid, pidfd: pidfd, request: make(chan struct{}, 1),
		conn: conn,
	}
	p.endRequest()
	return p, nil
}

// dial connects to a process of the same user and returns its ID.
func dial(ctx context.Context, address string) (*net.UnixConn, int, error) {
	c, err := new(net.Dialer).DialContext(ctx, "unix", address)
	if err != nil {
		return nil, 0, fmt.Errorf("connecting to a rank on this machine: %w", err)
	}
	sys.CloseInForks(c)
	conn := c.(*net.UnixConn)
	peer, err := sys.PeerOf(conn)
	if err == nil && peer.UID != os.Getuid() {
		err = fmt.Errorf("a rank's socket belongs to a process of user %d: %w", peer.UID, ErrRefused)
	}
	if err != nil {
		conn.Close()
		return nil, 0, err
	}
	return conn, peer.PID, nil
}

// PID returns the ID of the peer's process.
func (p *Peer) PID() int { return p.pid }

// Watch returns a descriptor that becomes readable when the process exits. Only Close closes it.
func (p *Peer) Watch() *os.File { return p.pidfd }

// Fetch returns the file that the peer has exported under key. The caller must close it.
func (p *Peer) Fetch(ctx context.Context, key Key) (*os.File, error) {
	if err := p.beginRequest(ctx); err != nil {
		return nil, fmt.Errorf("requesting shared memory from process %d: %w", p.pid, err)
	}
	defer p.endRequest()
	conn, err := p.connect(ctx)
	if err != nil {
		return nil, fmt.Errorf("requesting shared memory from process %d: %w", p.pid, err)
	}
	response := make([]byte, responseBytes)
	f, err := requestFile(ctx, conn, encodeRequest(p.token, key), response)
	if err != nil {
		_ = p.disconnect() // the caller needs the first error
		return nil, fmt.Errorf("requesting shared memory from process %d: %w", p.pid, err)
	}
	return p.checkResponse(f, response)
}

// beginRequest waits for the end of other requests, whose deadlines may be later.
func (p *Peer) beginRequest(ctx context.Context) error {
	select {
	case <-p.request:
		return nil // also after the deadline of ctx
	default:
	}
	select {
	case <-p.request:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (p *Peer) endRequest() { p.request <- struct{}{} }

// connect reconnects to the same process if necessary. It must be called during a request.
func (p *Peer) connect(ctx context.Context) (*net.UnixConn, error) {
	p.mu.Lock()
	conn, closed := p.conn, p.closed
	p.mu.Unlock()
	if closed {
		return nil, net.ErrClosed
	}
	if conn != nil {
		return conn, nil
	}
	conn, pid, err := dial(ctx, p.address)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		conn.Close()
		return nil, net.ErrClosed
	}
	if pid != p.pid {
		conn.Close()
		return nil, fmt.Errorf("process %d is now listening on that address: %w", pid, ErrRefused)
	}
	p.conn = conn
	return conn, nil
}

func (p *Peer) disconnect() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	conn := p.conn
	p.conn = nil
	if conn == nil {
		return nil
	}
	return conn.Close()
}

// answerTime is allowed after the deadline, during which this process may have been stopped, to
// send a request, and again to read the answer.
const answerTime = 100 * time.Millisecond

// requestFile may return no file. It ends at once if ctx is canceled. After the deadline of ctx, it
// allows answerTime more for sending, and again for the answer, and then returns the error of ctx.
func requestFile(
	ctx context.Context, conn *net.UnixConn, request, response []byte,
) (f *os.File, err error) {
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return nil, err
	}
	defer func() {
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = cmp.Or(ctx.Err(), context.DeadlineExceeded)
		}
	}()
	// SetDeadline fails only on a closed connection, which needs no deadline.
	stop := context.AfterFunc(ctx, func() {
		if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			_ = conn.SetDeadline(time.Unix(1, 0))
		}
	})
	defer stop()
	// After its deadline, a connection sends and reads nothing more.
	extendDeadline := func(err error) bool {
		return errors.Is(err, os.ErrDeadlineExceeded) &&
			!errors.Is(ctx.Err(), context.Canceled) &&
			conn.SetDeadline(time.Now().Add(answerTime)) == nil
	}
	n, err := conn.Write(request)
	if extendDeadline(err) {
		_, err = conn.Write(request[n:])
	}
	if err != nil {
		return nil, err
	}
	f, err = sys.ReceiveFile(conn, response)
	if extendDeadline(err) {
		f, err = sys.ReceiveFile(conn, response)
	}
	return f, err
}

// checkResponse returns f, or closes it and returns an error.
func (p *Peer) checkResponse(f *os.File, response []byte) (*os.File, error) {
	err := decodeResponse(response)
	if err == nil && f == nil {
		err = fmt.Errorf("the response contains no descriptor: %w", ErrProtocol)
	}
	if err == nil {
		return f, nil
	}
	if f != nil {
		f.Close()
	}
	return nil, fmt.Errorf("getting shared memory from process %d: %w", p.pid, err)
}

// Close makes a pending request fail.
func (p *Peer) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	return errors.Join(p.disconnect(), p.pidfd.Close())
}
