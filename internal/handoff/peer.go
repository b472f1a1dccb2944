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

// Peer is a connection to the Server of another process. It is safe for concurrent use.
//
// If a request fails or times out, the Peer closes the connection, so that a late response cannot
// be mistaken for the response to the next request. The next request reconnects.
type Peer struct {
	address string
	token   Token
	pid     int
	pidfd   *os.File // see Watch

	idle chan struct{} // contains a value while no request is in progress

	mu     sync.Mutex
	conn   *net.UnixConn // nil while disconnected; guarded by mu
	closed bool          // guarded by mu
}

// Dial connects to a Server. The error matches ErrRefused if the Server's process belongs to
// another user.
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
		address: address, token: token, pid: pid, pidfd: pidfd, idle: make(chan struct{}, 1),
		conn: conn,
	}
	p.idle <- struct{}{}
	return p, nil
}

// dial connects to a Server and returns the ID of its process, which must belong to the same user.
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

// Watch returns a descriptor that becomes readable when the peer's process exits. The caller must
// not close it. Close does.
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

// beginRequest waits until no other request is in progress. Other requests can have later
// deadlines, so it returns the error of ctx if ctx ends first.
func (p *Peer) beginRequest(ctx context.Context) error {
	select {
	case <-p.idle:
		return nil // even if ctx has ended: requestFile allows answerTime more
	default:
	}
	select {
	case <-p.idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (p *Peer) endRequest() { p.idle <- struct{}{} }

// connect returns the connection, after reconnecting to the same process if necessary. It must be
// called during a request.
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

// answerTime is how long requestFile may take after the deadline of its context to send a request,
// and again to read the response: the process may have been stopped until after the deadline.
const answerTime = 100 * time.Millisecond

// requestFile sends a request and reads the response and the file that comes with it, or nil. It
// returns at once if ctx is canceled. If it needs more than answerTime after the deadline, it
// returns the error of ctx.
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
	stop := context.AfterFunc(ctx, func() {
		if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			past := time.Unix(1, 0)    // makes pending calls return
			_ = conn.SetDeadline(past) // fails only if the connection is closed
		}
	})
	defer stop()
	// extendDeadline reports whether a call that returned err should be repeated with more time.
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

// checkResponse returns f if the response reports success. Otherwise, it closes f and returns an
// error.
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

// Close closes the connection and the descriptor of Watch. A request in progress fails.
func (p *Peer) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	return errors.Join(p.disconnect(), p.pidfd.Close())
}
