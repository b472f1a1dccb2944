package handoff

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"symmem/internal/sys"
)

// Peer is a connection to another process's Server. It is safe for use by several goroutines.
type Peer struct {
	token Token
	pid   int
	watch *os.File // pidfd of the process; becomes readable when it ends

	mu   sync.Mutex // one request at a time
	conn *net.UnixConn
}

// Dial connects to a Server of the same user.
func Dial(ctx context.Context, address string, token Token) (*Peer, error) {
	c, err := new(net.Dialer).DialContext(ctx, "unix", address)
	if err != nil {
		return nil, fmt.Errorf("connecting to a rank of this machine: %w", err)
	}
	conn := c.(*net.UnixConn)
	p, err := newPeer(conn, token)
	if err != nil {
		conn.Close()
		return nil, err
	}
	return p, nil
}

func newPeer(conn *net.UnixConn, token Token) (*Peer, error) {
	who, err := sys.PeerOf(conn)
	if err != nil {
		return nil, err
	}
	if who.UID != os.Getuid() {
		return nil, fmt.Errorf("user %d answers on a rank's socket: %w", who.UID, ErrRefused)
	}
	// The connection is open, so the process lives and the number is still its own.
	watch, err := sys.Pidfd(who.PID)
	if err != nil {
		return nil, err
	}
	return &Peer{token: token, pid: who.PID, watch: watch, conn: conn}, nil
}

// PID is the process id of the peer, as the kernel says.
func (p *Peer) PID() int { return p.pid }

// Watch is a descriptor that becomes readable when the process ends. It stays the Peer's.
func (p *Peer) Watch() *os.File { return p.watch }

// Fetch asks for what the peer has exported under the key. The file is the caller's.
func (p *Peer) Fetch(ctx context.Context, key Key) (*os.File, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	deadline, _ := ctx.Deadline()
	p.conn.SetDeadline(deadline)
	stop := context.AfterFunc(ctx, func() { p.conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if _, err := p.conn.Write(encodeRequest(p.token, key)); err != nil {
		return nil, fmt.Errorf("asking process %d for shared memory: %w", p.pid, err)
	}
	response := make([]byte, responseSize)
	f, err := sys.ReceiveFile(p.conn, response)
	if err != nil {
		return nil, fmt.Errorf("getting shared memory from process %d: %w", p.pid, err)
	}
	return p.accept(f, response)
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

// Close ends the connection.
func (p *Peer) Close() error { return errors.Join(p.conn.Close(), p.watch.Close()) }
