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

// Peer is a connection to the Server of another process, from which it fetches files. It is safe
// for concurrent use.
//
// If a request fails or times out, the Peer closes the connection, so that a late response cannot
// be mistaken for the response to the next request. The next request reconnects.
type Peer struct {
	address string
	token   Token
	pid     int
	pidfd   *os.File // descriptor of the peer's process; see Watch

	idle chan struct{} // contains one value while no request is in progress

	mu     sync.Mutex    // guards the fields below
	conn   *net.UnixConn // nil while disconnected
	closed bool
}

// Dial connects to a Server. The token proves to the Server that both processes belong to one job.
// The error matches ErrRefused if the Server's process belongs to another user.
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
		address: address,
		token:   token,
		pid:     pid,
		pidfd:   pidfd,
		idle:    make(chan struct{}, 1),
		conn:    conn,
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

	sys.CloseInForks(c) // so that the connection ends with this process
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

// Watch returns a descriptor that becomes readable when the peer's process exits. Only Close may
// close the descriptor.
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

// beginRequest waits until no other request is in progress. Call endRequest after the request. If
// ctx ends first, beginRequest returns the error of ctx, because other requests can have later
// deadlines.
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

// endRequest lets the next request begin.
func (p *Peer) endRequest() { p.idle <- struct{}{} }

// connect returns the connection. If there is none, it reconnects to the same process. Call it only
// during a request, so that no other goroutine reconnects at the same time.
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
	if p.closed { // while the mutex was unlocked
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

// disconnect closes the connection if there is one.
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

// answerTime is added to the deadline of requestFile, once to send the request and once to read the
// response. If this process was stopped until after the deadline, the peer thus has time to answer.
const answerTime = 100 * time.Millisecond

// requestFile sends a request. It reads the response into response, and returns the file that comes
// with the response, or nil if there is none. It returns at once if ctx is canceled. After the
// deadline of ctx, it allows answerTime more, and then returns the error of ctx.
func requestFile(
	ctx context.Context, conn *net.UnixConn, request, response []byte,
) (f *os.File, err error) {
	deadline, _ := ctx.Deadline() // the zero time means no deadline, also for conn
	if err := conn.SetDeadline(deadline); err != nil {
		return nil, err
	}

	defer func() {
		if errors.Is(err, os.ErrDeadlineExceeded) { // callers expect the error of a context
			err = cmp.Or(ctx.Err(), context.DeadlineExceeded)
		}
	}()
	watched := make(chan struct{}) // closed at the end of the function that ctx starts
	stopWatchingContext := context.AfterFunc(ctx, func() {
		defer close(watched)
		isCanceled := !errors.Is(ctx.Err(), context.DeadlineExceeded)
		if isCanceled {
			past := time.Unix(1, 0)    // makes pending calls return
			_ = conn.SetDeadline(past) // fails only if the connection is closed
		}
	})
	defer func() {
		if !stopWatchingContext() {
			<-watched // it must not change the deadline of the next request
		}
	}()
	n, err := conn.Write(request) // n bytes were sent even if err is not nil
	if tryExtendDeadline(ctx, conn, err) {
		_, err = conn.Write(request[n:])
	}

	if err != nil {
		return nil, err
	}

	f, err = sys.ReceiveFile(conn, response)
	if tryExtendDeadline(ctx, conn, err) {
		f, err = sys.ReceiveFile(conn, response)
	}

	return f, err
}

// tryExtendDeadline sets the deadline of conn to answerTime from now, if err shows that a call has
// reached the deadline. It reports whether it has done so and the call should be repeated. It does
// nothing if ctx is canceled.
func tryExtendDeadline(ctx context.Context, conn *net.UnixConn, err error) bool {
	hasTimedOut := errors.Is(err, os.ErrDeadlineExceeded)
	isCanceled := errors.Is(ctx.Err(), context.Canceled)
	if !hasTimedOut || isCanceled {
		return false
	}

	setErr := conn.SetDeadline(time.Now().Add(answerTime))
	return setErr == nil
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
	connErr := p.disconnect()
	pidfdErr := p.pidfd.Close()
	return errors.Join(connErr, pidfdErr)
}
