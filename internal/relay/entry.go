package relay

import (
	"context"
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"symmem/driver"
)

const (
	// introduction bounds how long a stranger may keep silent.
	introduction = 5 * time.Second
	// mostStrangers is how many connections may be about to introduce themselves at once, beside
	// those of the group.
	mostStrangers = 64
)

// entry is the joining of a group, until this rank is connected to all others.
type entry struct {
	cfg      Config
	token    token
	listener net.Listener
	tasks    sync.WaitGroup
	// strangers has an entry for every connection that has not introduced itself.
	strangers chan struct{}

	mu    sync.Mutex
	links []*link       // by group rank; guarded by mu
	left  int           // how many are still to come; guarded by mu
	err   error         // what ended the joining; guarded by mu
	done  chan struct{} // closed when nobody is to come, or err is set
}

// connect connects this rank to all others.
func (e *entry) connect(ctx context.Context) ([]*link, error) {
	n := len(e.cfg.Group.Ranks)
	e.links, e.left, e.done = make([]*link, n), n-1, make(chan struct{})
	e.strangers = make(chan struct{}, n+mostStrangers)
	if n == 1 {
		return e.links, nil
	}
	if err := e.listen(ctx); err != nil {
		return nil, e.absence(ctx, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	e.tasks.Go(func() { e.accept(ctx) })
	for r := range e.cfg.Group.Rank {
		e.tasks.Go(func() { e.settle(e.dial(ctx, r)) })
	}
	select {
	case <-e.done:
	case <-ctx.Done():
	}
	err := e.outcome(ctx)
	cancel()
	closed := e.listener.Close()
	e.tasks.Wait()
	if err = errors.Join(err, closed); err != nil {
		e.discard()
		return nil, err
	}
	return e.links, nil
}

// outcome says why the joining has not succeeded, if so.
func (e *entry) outcome(ctx context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.left == 0:
		return nil
	case e.err != nil && ctx.Err() == nil:
		return e.err
	default:
		return e.absenceLocked(ctx, e.err)
	}
}

// absence turns the end of the time into a TimeoutError that names who did not come.
func (e *entry) absence(ctx context.Context, err error) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.absenceLocked(ctx, err)
}

func (e *entry) absenceLocked(ctx context.Context, err error) error {
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return errors.Join(err, context.Cause(ctx))
	}
	late := &driver.TimeoutError{
		Doing: "joining group " + e.cfg.Group.ID, Waited: e.cfg.Timeout,
	}
	for r, l := range e.links {
		if l == nil && r != e.cfg.Group.Rank {
			late.Missing = append(late.Missing, e.cfg.Group.Ranks[r])
		}
	}
	return errors.Join(late, err)
}

func (e *entry) discard() {
	for _, l := range e.links {
		if l != nil {
			_ = l.conn.Close()
		}
	}
}

// listen opens a port and leaves its address in the store.
func (e *entry) listen(ctx context.Context) error {
	if err := e.shareToken(ctx); err != nil {
		return err
	}
	host := e.cfg.Host
	if host == "" {
		host = loopback
	}
	var config net.ListenConfig
	var err error
	if e.listener, err = config.Listen(ctx, "tcp", net.JoinHostPort(host, "0")); err != nil {
		return err
	}
	address := []byte(e.listener.Addr().String())
	if err := e.cfg.Store.Set(ctx, e.addressKey(e.cfg.Group.Rank), address); err != nil {
		return errors.Join(err, e.listener.Close())
	}
	return nil
}

// settle enters a connection, or what has ended the joining.
func (e *entry) settle(l *link, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.left == 0 || e.err != nil:
		if l != nil {
			_ = l.conn.Close()
		}
		return
	case err != nil:
		e.err = err
	case e.links[l.rank] != nil:
		_ = l.conn.Close()
		return
	default:
		e.links[l.rank] = l
		e.left--
	}
	if e.left == 0 || e.err != nil {
		close(e.done)
	}
}

// dial connects to a rank before this one.
func (e *entry) dial(ctx context.Context, r int) (*link, error) {
	address, err := e.cfg.Store.Get(ctx, e.addressKey(r))
	if err != nil {
		return nil, fmt.Errorf("asking for the address of rank %d: %w", e.cfg.Group.Ranks[r], err)
	}
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", string(address))
	if err != nil {
		return nil, fmt.Errorf("connecting to rank %d: %w", e.cfg.Group.Ranks[r], err)
	}
	l := newLink(r, conn.(*net.TCPConn))
	if err := e.introduce(ctx, l); err != nil {
		return nil, errors.Join(
			fmt.Errorf("connecting to rank %d: %w", e.cfg.Group.Ranks[r], err), conn.Close())
	}
	return l, nil
}

// introduce shows our half of the token and looks at the other.
func (e *entry) introduce(ctx context.Context, l *link) error {
	stop := context.AfterFunc(ctx, func() { _ = l.conn.SetDeadline(time.Now()) })
	defer stop()
	if err := watchful(l.conn); err != nil {
		return err
	}
	if _, err := l.conn.Write(e.hello()); err != nil {
		return err
	}
	var answer [tokenHalf]byte
	if _, err := io.ReadFull(l.conn, answer[:]); err != nil {
		return err
	}
	if subtle.ConstantTimeCompare(answer[:], e.token[tokenHalf:]) != 1 {
		return fmt.Errorf("it does not know the token of the group: %w", ErrProtocol)
	}
	return nil
}

// accept lets in the ranks after this one, until the listener is closed. Strangers are sent away
// and end nothing.
func (e *entry) accept(ctx context.Context) {
	for {
		conn, err := e.listener.Accept()
		if err != nil {
			return
		}
		select {
		case e.strangers <- struct{}{}:
		case <-ctx.Done():
			_ = conn.Close()
			return
		}
		e.tasks.Go(func() {
			defer func() { <-e.strangers }()
			if l := e.admit(ctx, conn.(*net.TCPConn)); l != nil {
				e.settle(l, nil)
			} else {
				_ = conn.Close()
			}
		})
	}
}

// admit looks at the other end's half of the token and shows ours, or returns nil.
func (e *entry) admit(ctx context.Context, conn *net.TCPConn) *link {
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })
	defer stop()
	if conn.SetDeadline(time.Now().Add(introduction)) != nil || watchful(conn) != nil {
		return nil
	}
	var b [helloBytes]byte
	if _, err := io.ReadFull(conn, b[:]); err != nil {
		return nil
	}
	r, err := e.decodeHello(b)
	if err != nil {
		return nil
	}
	if _, err := conn.Write(e.token[tokenHalf:]); err != nil {
		return nil
	}
	if conn.SetDeadline(time.Time{}) != nil {
		return nil
	}
	return newLink(r, conn)
}

// decodeHello returns the group rank of who is at the other end.
func (e *entry) decodeHello(b [helloBytes]byte) (int, error) {
	shown := b[len(helloWord) : len(helloWord)+tokenHalf]
	known := subtle.ConstantTimeCompare(shown, e.token[:tokenHalf]) == 1
	r := binary.LittleEndian.Uint32(b[len(helloWord)+tokenHalf:])
	if string(b[:len(helloWord)]) != helloWord || !known ||
		r <= uint32(e.cfg.Group.Rank) || r >= uint32(len(e.cfg.Group.Ranks)) {
		return 0, ErrProtocol
	}
	return int(r), nil
}
