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
	// handshakeTimeout bounds how long a new connection may take to authenticate.
	handshakeTimeout = 5 * time.Second
	// maxUnauthenticated is how many connections may be in their handshake at once, in addition to
	// those of the group.
	maxUnauthenticated = 64
)

// joining is the state of one Join, until this rank is connected to all others.
type joining struct {
	cfg      Config
	begin    time.Time
	list     control.JoinList
	token    token
	listener net.Listener
	tasks    sync.WaitGroup
	// unauthenticated has an entry for every connection that has not shown its token yet.
	unauthenticated chan struct{}

	mu        sync.Mutex
	links     []*link       // by group rank; guarded by mu
	remaining int           // how many are still to come; guarded by mu
	done      chan struct{} // closed when nobody is to come
}

// connect connects this rank to all others. A rank that fails here stores why, for the others.
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
	// The reason is stored before connections are closed, so that ranks which find that know why.
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

// connectAll waits until this rank is connected to all others, or for the first error. What it has
// started ends with the context.
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
		// What was started ends with ctx, too: its end may come here as an error of theirs.
		return e.absentError(ctx, context.Cause(joining))
	}
}

// failedError is why another rank could not join: a RankLostError, or the text of its error.
type failedError struct{ error }

// Unwrap returns why.
func (e *failedError) Unwrap() error { return e.error }

// publishFailure leaves in the store why this rank could not join.
func (e *joining) publishFailure(ctx context.Context, err error) {
	value := append([]byte(strconv.Itoa(e.cfg.Group.Rank)+" "), control.EncodeFailure(err)...)
	// Where that fails the others wait until their time is up.
	_ = e.cfg.Store.Set(ctx, e.key("failed"), value)
}

// decodeFailure reads what publishFailure has stored.
func (e *joining) decodeFailure(value []byte) *failedError {
	from, report, _ := bytes.Cut(value, []byte(" "))
	all := make([][]byte, len(e.cfg.Group.Ranks))
	r, err := strconv.Atoi(string(from))
	if err != nil || r < 0 || r >= len(all) {
		return &failedError{fmt.Errorf("another rank could not, for a reason that is not understood: "+
			"%s", control.Printable(string(value)))}
	}
	all[r] = report
	return &failedError{cmp.Or(control.DecodeFailures(e.cfg.Group.Ranks, all, "meeting the ranks"),
		fmt.Errorf("rank %d could not", e.cfg.Group.Ranks[r]))}
}

// joinError is the error with which this rank ends the joining: that of another one, if it has
// failed first, or else its own, which it leaves in the store. Who is missing when the time is up
// every rank finds by itself.
func (e *joining) joinError(ctx context.Context, err error) error {
	if err == nil || errors.Is(ctx.Err(), context.DeadlineExceeded) ||
		errors.As(err, new(*failedError)) {
		return err
	}
	if ended, ok := errors.AsType[*rendezvous.EndedError](err); ok {
		err = e.lost(ended.Rank, ended.How)
	}
	// This error may be the consequence of that of another rank, which may store it a moment later.
	waiting, cancel := context.WithTimeout(ctx, ackTimeout)
	defer cancel()
	if failed := e.peerFailure(waiting); failed != nil {
		return failed
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return e.absentError(ctx, err)
	}
	telling, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	e.publishFailure(telling, err)
	return err
}

// lost is the error that names a rank of the world which has ended.
func (e *joining) lost(rank int, how string) error {
	return &driver.RankLostError{
		Ranks: []int{rank}, Members: e.cfg.Group.Ranks,
		Doing: "meeting the ranks of group " + e.cfg.Group.Name() + " (" + how + ")",
	}
}

// peerFailureOr is why a rank was lost behind the joining: it may be one that could not join, and
// tells so a moment after it has closed its connections.
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

// peerFailure waits until another rank has stored why it could not join, or is nil when the context
// ends.
func (e *joining) peerFailure(ctx context.Context) *failedError {
	if encoded, err := e.cfg.Store.Get(ctx, e.key("failed")); err == nil {
		return e.decodeFailure(encoded)
	}
	return nil
}

// absentError turns the end of the time into an AbsentError that names who did not come, or, if all
// have, to whom there is no connection.
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
		return nil // the last one has come at the last moment
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

// listen opens a port and leaves its addresses in the store.
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

// addresses lists where others can reach the listener, the likeliest first: the loopback is for
// machines that have nothing else.
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

// likelihood ranks addresses by how likely another machine is to reach them.
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

// addLink notes a connection.
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

// dial connects to a rank before this one, at the first of its addresses where it is.
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
		return nil, e.lost(rank, fmt.Sprintf("nobody is at %q any more", value))
	}
	return nil, fmt.Errorf("connecting to rank %d at %q: %w", rank, value, errors.Join(errs...))
}

// refused reports whether nobody is at an address, or somebody has left it meanwhile.
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

// handshake sends our half of the token and checks the other.
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

// accept accepts connections of the ranks after this one, until the listener is closed. Connections
// without the token are closed, and do not fail the joining.
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

// acceptPeer checks the other end's half of the token and sends ours, or returns nil.
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
