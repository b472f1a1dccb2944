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
// A request that ends without its answer, as by a deadline, also closes the connection. Otherwise a
// late answer could be taken for the answer to the next request. The next request reconnects.
type Peer struct {
	address string
	token   Token
	pid     int
	watch   *os.File // pidfd of the process; becomes readable when it ends

	turn sync.Mutex // serializes requests

	mu     sync.Mutex
	conn   *net.UnixConn // nil while disconnected; guarded by mu
	closed bool          // guarded by mu
}

// Dial connects to a Server of the same user.
func Dial(ctx context.Context, address string, token Token) (*Peer, error) {
	conn, pid, err := connect(ctx, address)
	if err != nil {
		return nil, err
	}
	// The connection is open, so the process is alive and its id has not been reused.
	watch, err := sys.Pidfd(pid)
	if err != nil {
		conn.Close()
		return nil, err
	}
	return &Peer{address: address, token: token, pid: pid, watch: watch, conn: conn}, nil
}

// connect opens a connection to a process of the same user, and returns its process id.
func connect(ctx context.Context, address string) (*net.UnixConn, int, error) {
	c, err := new(net.Dialer).DialContext(ctx, "unix", address)
	if err != nil {
		return nil, 0, fmt.Errorf("connecting to a rank of this machine: %w", err)
	}
	sys.CloseInForks(c)
	conn := c.(*net.UnixConn)
	who, err := sys.PeerOf(conn)
	if err == nil && who.UID != os.Getuid() {
		err = fmt.Errorf("user %d answers on a rank's socket: %w", who.UID, ErrRefused)
	}
	if err != nil {
		conn.Close()
		return nil, 0, err
	}
	return conn, who.PID, nil
}

// PID returns the process id of the peer, as reported by the kernel.
func (p *Peer) PID() int { return p.pid }

// Watch returns a descriptor that becomes readable when the process ends. The Peer owns it.
func (p *Peer) Watch() *os.File { return p.watch }

// Fetch requests the file that the peer has exported under the key. The caller owns the file.
func (p *Peer) Fetch(ctx context.Context, key Key) (*os.File, error) {
	p.turn.Lock()
	defer p.turn.Unlock()
	conn, err := p.connection(ctx)
	if err != nil {
		return nil, fmt.Errorf("asking process %d for shared memory: %w", p.pid, err)
	}
	response := make([]byte, responseSize)
	f, err := ask(ctx, conn, encodeRequest(p.token, key), response)
	if err != nil {
		// A failing close cannot be handled.
		_ = p.hangUp()
		return nil, fmt.Errorf("asking process %d for shared memory: %w", p.pid, err)
	}
	return p.accept(f, response)
}

// connection returns the connection, or a new one to the same process. The caller holds turn.
func (p *Peer) connection(ctx context.Context) (*net.UnixConn, error) {
	p.mu.Lock()
	conn, closed := p.conn, p.closed
	p.mu.Unlock()
	if closed {
		return nil, net.ErrClosed
	}
	if conn != nil {
		return conn, nil
	}
	conn, pid, err := connect(ctx, p.address)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if pid != p.pid || p.closed {
		conn.Close()
		return nil, fmt.Errorf("process %d answers: %w", pid, ErrRefused)
	}
	p.conn = conn
	return conn, nil
}

func (p *Peer) hangUp() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	conn := p.conn
	p.conn = nil
	if conn == nil {
		return nil
	}
	return conn.Close()
}

// ask sends a request and fills in the response. The caller owns the descriptor that came with it,
// if any. After the end of ctx it returns the error of ctx, also if the connection's deadline,
// which is the same, has expired first.
func ask(
	ctx context.Context, c *net.UnixConn, request, response []byte,
) (f *os.File, err error) {
	deadline, _ := ctx.Deadline()
	if err := c.SetDeadline(deadline); err != nil {
		return nil, err
	}
	defer func() {
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = cmp.Or(ctx.Err(), context.DeadlineExceeded)
		}
	}()
	// It fails only on a closed connection, which needs no deadline.
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if _, err := c.Write(request); err != nil {
		return nil, err
	}
	return sys.ReceiveFile(c, response)
}

func (p *Peer) accept(f *os.File, response []byte) (*os.File, error) {
	err := decodeResponse(response)
	if err == nil && f == nil {
		err = fmt.Errorf("no descriptor came: %w", ErrProtocol)
	}
	if err == nil {
		return f, nil
	}
	if f != nil {
		f.Close()
	}
	return nil, fmt.Errorf("getting shared memory from process %d: %w", p.pid, err)
}

// Close closes the connection, which ends a pending request.
func (p *Peer) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	return errors.Join(p.hangUp(), p.watch.Close())
}
