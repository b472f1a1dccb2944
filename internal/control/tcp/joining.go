package tcp

import (
	"bytes"
	"cmp"
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"symmem/driver"
	"symmem/internal/control"
	"symmem/internal/rendezvous"
	"symmem/internal/sys"
)

const (
	// handshakeTimeout bounds the authentication of a new connection.
	handshakeTimeout = 5 * time.Second
	// maxUnauthenticated bounds the connections, beyond those of the group, that may be in their
	// handshake at once.
	maxUnauthenticated = 64
)

// joining holds the state of one Join until this rank is connected to all others.
type joining struct {
	cfg      Config
	begin    time.Time
	list     control.JoinList
	token    token
	listener net.Listener
	tasks    sync.WaitGroup
	// unauthenticated has an entry for every connection that has not presented its token yet.
	unauthenticated chan struct{}

	mu        sync.Mutex
	links     []*link       // by group rank; guarded by mu
	remaining int           // ranks still to be connected; guarded by mu
	done      chan struct{} // closed when remaining is 0
}

// connect connects this rank to all others. If it fails, it stores the reason for the others.
func (e *joining) connect(ctx context.Context) ([]*link, error) {
	n := len(e.cfg.Group.Ranks)
	e.links, e.remaining, e.done = make([]*link, n), n-1, make(chan struct{})
	e.unauthenticated = make(chan struct{}, n+maxUnauthenticated)
	if n == 1 {
		return e.links, nil
	}
	e.begin, e.list = time.Now(), control.JoinList{Store: e.cfg.Store, Group: e.cfg.Group}
	if err := e.list.Add(ctx); err != nil {
		return nil, err
	}
	defer e.list.WarnLate(e.cfg.Late, func() []int { return nil })()
	working, stop := context.WithCancel(ctx)
	// The reason is stored before connections are closed, so that ranks that see them close can
	// read it.
	err := e.joinError(ctx, e.connectAll(working))
	stop()
	if e.listener != nil {
		err = errors.Join(err, e.listener.Close())
	}
	e.tasks.Wait()
	if err != nil {
		e.discard()
		return nil, err
	}
	return e.links, nil
}

// connectAll waits until this rank is connected to all others, or for the first error. The
// goroutines that it starts end with the context.
func (e *joining) connectAll(ctx context.Context) error {
	joining, end := context.WithCancelCause(ctx)
	defer end(nil)
	e.tasks.Go(func() {
		if failed := e.peerFailure(ctx); failed != nil {
			end(failed)
		}
	})
	if err := e.listen(ctx); err != nil {
		return e.absentError(ctx, err)
	}
	e.tasks.Go(func() { e.accept(ctx) })
	for r := range e.cfg.Group.Rank {
		e.tasks.Go(func() {
			if l, err := e.dial(ctx, r); err != nil {
				end(err)
			} else {
				e.addLink(l)
			}
		})
	}
	select {
	case <-e.done:
		return nil
	case <-joining.Done():
		// The goroutines end with ctx, too, so the cause may be an error that one of them returned
		// for that.
		return e.absentError(ctx, context.Cause(joining))
	}
}

// failedError is the error of another rank that could not join: a RankLostError, or the text of its
// error.
type failedError struct{ error }

// Unwrap returns the error of the other rank.
func (e *failedError) Unwrap() error { return e.error }

// publishFailure stores the reason why this rank could not join.
func (e *joining) publishFailure(ctx context.Context, err error) {
	value := append([]byte(strconv.Itoa(e.cfg.Group.Rank)+" "), control.EncodeFailure(err)...)
	// If that fails, the others wait until their timeout.
	_ = e.cfg.Store.Set(ctx, e.key("failed"), value)
}

// decodeFailure decodes a value that publishFailure has stored.
func (e *joining) decodeFailure(value []byte) *failedError {
	from, report, _ := bytes.Cut(value, []byte(" "))
	all := make([][]byte, len(e.cfg.Group.Ranks))
	r, err := strconv.Atoi(string(from))
	if err != nil || r < 0 || r >= len(all) {
		return &failedError{fmt.Errorf("another rank could not join, for an unreadable reason: "+
			"%s", control.Printable(string(value)))}
	}
	all[r] = report
	return &failedError{cmp.Or(control.DecodeFailures(e.cfg.Group.Ranks, all, "meeting the ranks"),
		fmt.Errorf("rank %d could not join", e.cfg.Group.Ranks[r]))}
}

// joinError returns the error with which this rank fails to join. If another rank has failed first,
// it is that rank's error. Otherwise it is err, which joinError stores for the others. The error of
// a timeout is not stored, since every rank finds the missing ranks on its own.
func (e *joining) joinError(ctx context.Context, err error) error {
	if err == nil || errors.Is(ctx.Err(), context.DeadlineExceeded) ||
		errors.As(err, new(*failedError)) {
		return err
	}
	if ended, ok := errors.AsType[*rendezvous.EndedError](err); ok {
		err = e.lost(ended.Rank, ended.How)
	}
	// This error may be a consequence of another rank's, which may be stored a moment later.
	waiting, cancel := context.WithTimeout(ctx, ackTimeout)
	defer cancel()
	if failed := e.peerFailure(waiting); failed != nil {
		return failed
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return e.absentError(ctx, err)
	}
	storing, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	e.publishFailure(storing, err)
	return err
}

// lost returns an error that names a world rank which has ended.
func (e *joining) lost(rank int, how string) error {
	return &driver.RankLostError{
		Ranks: []int{rank}, Members: e.cfg.Group.Ranks,
		Doing: "meeting the ranks of group " + e.cfg.Group.Name() + " (" + how + ")",
	}
}

// peerFailureOr returns the reason why a rank was lost while joining, or err if none is stored in
// time. A rank that cannot join stores its reason shortly after it has closed its connections.
func (e *joining) peerFailureOr(ctx context.Context, err error) error {
	if !errors.As(err, new(*driver.RankLostError)) && !errors.Is(err, driver.ErrFault) {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*ackTimeout)
	defer cancel()
	if failed := e.peerFailure(ctx); failed != nil {
		return failed
	}
	return err
}

// peerFailure waits until another rank has stored the reason why it could not join. It returns nil
// if the context ends first.
func (e *joining) peerFailure(ctx context.Context) *failedError {
	if encoded, err := e.cfg.Store.Get(ctx, e.key("failed")); err == nil {
		return e.decodeFailure(encoded)
	}
	return nil
}

// absentError turns a timeout into an AbsentError that names the ranks that have not joined, or, if
// all have, the ranks without a connection.
func (e *joining) absentError(ctx context.Context, err error) error {
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
			err = errors.Join(err, cause)
		}
		return err
	}
	var awaited []int
	e.mu.Lock()
	for r, l := range e.links {
		if l == nil && r != e.cfg.Group.Rank {
			awaited = append(awaited, e.cfg.Group.Ranks[r])
		}
	}
	e.mu.Unlock()
	if len(awaited) == 0 {
		return nil // the last rank connected just in time
	}
	return e.list.AbsentError(time.Since(e.begin), awaited, err)
}

func (e *joining) discard() {
	for _, l := range e.links {
		if l != nil {
			_ = l.conn.Close()
		}
	}
}

// listen opens a port and stores its addresses.
func (e *joining) listen(ctx context.Context) error {
	if err := e.shareToken(ctx); err != nil {
		return err
	}
	var config net.ListenConfig
	var err error
	e.listener, err = config.Listen(ctx, "tcp", net.JoinHostPort(e.cfg.Host, "0"))
	if err != nil {
		return err
	}
	sys.CloseInForks(e.listener)
	addresses, err := e.addresses()
	if err != nil {
		return err
	}
	value := []byte(strings.Join(addresses, " "))
	return e.cfg.Store.Set(ctx, e.addressKey(e.cfg.Group.Rank), value)
}

// addresses lists the addresses of the listener, the one most likely to be reachable first.
// Loopback addresses serve only machines without any other.
func (e *joining) addresses() ([]string, error) {
	at := e.listener.Addr().(*net.TCPAddr)
	if !at.IP.IsUnspecified() {
		return []string{at.String()}, nil
	}
	own, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("listing this machine's addresses: %w", err)
	}
	var ips []net.IP
	for _, a := range own {
		if n, ok := a.(*net.IPNet); ok && (n.IP.IsGlobalUnicast() || n.IP.IsLoopback()) {
			ips = append(ips, n.IP)
		}
	}
	slices.SortStableFunc(ips, func(a, b net.IP) int { return likelihood(b) - likelihood(a) })
	var list []string
	for _, ip := range ips {
		list = append(list, (&net.TCPAddr{IP: ip, Port: at.Port}).String())
	}
	return list, nil
}

// likelihood orders addresses by the likelihood that another machine can reach them.
func likelihood(ip net.IP) int {
	switch {
	case ip.IsLoopback():
		return 0
	case ip.To4() == nil:
		return 1
	default:
		return 2
	}
}

// addLink records a connection.
func (e *joining) addLink(l *link) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.links[l.rank] != nil {
		_ = l.conn.Close()
		return
	}
	e.links[l.rank] = l
	if e.remaining--; e.remaining == 0 {
		close(e.done)
	}
}

// dial connects to a rank before this one, at the first of its addresses that answers.
func (e *joining) dial(ctx context.Context, r int) (*link, error) {
	value, err := e.cfg.Store.Get(ctx, e.addressKey(r))
	if err != nil {
		return nil, fmt.Errorf("asking for the address of rank %d: %w", e.cfg.Group.Ranks[r], err)
	}
	var errs []error
	for _, address := range strings.Fields(string(value)) {
		l, err := e.tryAddress(ctx, r, address)
		if err == nil {
			return l, nil
		}
		errs = append(errs, err)
	}
	rank := e.cfg.Group.Ranks[r]
	if !slices.ContainsFunc(errs, func(err error) bool { return !refused(err) }) {
		return nil, e.lost(rank, fmt.Sprintf("its addresses %q refuse connections", value))
	}
	return nil, fmt.Errorf("connecting to rank %d at %q: %w", rank, value, errors.Join(errs...))
}

// refused reports whether the address has no listener, or its process closed the connection.
func refused(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET) ||
		errors.Is(err, syscall.EPIPE)
}

// tryAddress tries one address.
func (e *joining) tryAddress(ctx context.Context, r int, address string) (*link, error) {
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	sys.CloseInForks(conn)
	l := newLink(r, conn.(*net.TCPConn))
	if err := e.handshake(ctx, l); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return l, nil
}

// handshake sends our half of the token and verifies the other.
func (e *joining) handshake(ctx context.Context, l *link) error {
	stop := context.AfterFunc(ctx, func() { _ = l.conn.SetDeadline(time.Now()) })
	defer stop()
	if err := setKeepAlive(l.conn); err != nil {
		return err
	}
	if _, err := l.conn.Write(e.hello(l.rank)); err != nil {
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

// accept accepts connections of the ranks after this one until the listener is closed. Connections
// without the token are closed and do not affect the join.
func (e *joining) accept(ctx context.Context) {
	for {
		conn, err := e.listener.Accept()
		if err != nil {
			return
		}
		sys.CloseInForks(conn)
		select {
		case e.unauthenticated <- struct{}{}:
		case <-ctx.Done():
			_ = conn.Close()
			return
		}
		e.tasks.Go(func() {
			defer func() { <-e.unauthenticated }()
			if l := e.acceptPeer(ctx, conn.(*net.TCPConn)); l != nil {
				e.addLink(l)
			} else {
				_ = conn.Close()
			}
		})
	}
}

// acceptPeer verifies the other end's half of the token and sends ours. It returns nil if that
// fails.
func (e *joining) acceptPeer(ctx context.Context, conn *net.TCPConn) *link {
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })
	defer stop()
	if conn.SetDeadline(time.Now().Add(handshakeTimeout)) != nil || setKeepAlive(conn) != nil {
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
