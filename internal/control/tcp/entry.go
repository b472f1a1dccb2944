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
)

const (
	// introduction bounds how long a stranger may keep silent.
	introduction = 5 * time.Second
	// mostStrangers is how many connections may be about to introduce themselves at once, in
	// addition to those of the group.
	mostStrangers = 64
)

// entry is the joining of a group, until this rank is connected to all others.
type entry struct {
	cfg      Config
	begin    time.Time
	roll     control.Roll
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

// connect connects this rank to all others. A rank that cannot tells the others why.
func (e *entry) connect(ctx context.Context) ([]*link, error) {
	n := len(e.cfg.Group.Ranks)
	e.links, e.left, e.done = make([]*link, n), n-1, make(chan struct{})
	e.strangers = make(chan struct{}, n+mostStrangers)
	if n == 1 {
		return e.links, nil
	}
	e.begin, e.roll = time.Now(), control.Roll{Store: e.cfg.Store, Group: e.cfg.Group}
	if err := e.roll.Come(ctx); err != nil {
		return nil, err
	}
	defer e.roll.WarnLate(e.cfg.Late, func() []int { return nil })()
	ctx, cancel := context.WithCancelCause(ctx)
	e.tasks.Go(func() { e.awaitRefusal(ctx, cancel) })
	err := e.meet(ctx)
	cancel(nil)
	e.tasks.Wait()
	if err != nil {
		e.discard()
		return nil, err
	}
	return e.links, nil
}

// meet waits until this rank is connected to all others. What it has started ends with the
// context.
func (e *entry) meet(ctx context.Context) error {
	if err := e.listen(ctx); err != nil {
		return e.joinError(ctx, e.absence(ctx, err))
	}
	e.tasks.Go(func() { e.accept(ctx) })
	for r := range e.cfg.Group.Rank {
		e.tasks.Go(func() { e.enter(e.dial(ctx, r)) })
	}
	select {
	case <-e.done:
	case <-ctx.Done():
	}
	// Whoever finds the port closed must be able to know why.
	return errors.Join(e.joinError(ctx, e.outcome(ctx)), e.listener.Close())
}

// failedError is why another rank could not join: a RankLostError, or what it has said.
type failedError struct{ error }

// Unwrap returns why.
func (e *failedError) Unwrap() error { return e.error }

// tell leaves in the store why this rank could not join.
func (e *entry) tell(ctx context.Context, err error) {
	said := append([]byte(strconv.Itoa(e.cfg.Group.Rank)+" "), control.EncodeFailure(err)...)
	// Those that do not hear of it wait until their time is up.
	_ = e.cfg.Store.Set(ctx, e.key("failed"), said)
}

// failure reads what a rank has told.
func (e *entry) failure(said []byte) *failedError {
	from, complaint, _ := bytes.Cut(said, []byte(" "))
	all := make([][]byte, len(e.cfg.Group.Ranks))
	r, err := strconv.Atoi(string(from))
	if err != nil || r < 0 || r >= len(all) {
		return &failedError{fmt.Errorf("another rank could not, for a reason that is not understood: "+
			"%s", control.Printable(string(said)))}
	}
	all[r] = complaint
	return &failedError{cmp.Or(control.DecodeFailures(e.cfg.Group.Ranks, all, "meeting the ranks"),
		fmt.Errorf("rank %d could not", e.cfg.Group.Ranks[r]))}
}

// joinError is the error with which this rank ends the joining: that of another one, if it has
// failed first, or else its own, which it leaves in the store. Who is missing when the time is up
// every rank finds by itself.
func (e *entry) joinError(ctx context.Context, err error) error {
	if err == nil || errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return err
	}
	if ended, ok := errors.AsType[*rendezvous.EndedError](err); ok {
		err = e.lost(ended.Rank, ended.How)
	}
	// This error may be the consequence of another one, of which the word is on its way.
	timer := time.NewTimer(hearing)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
	if failed, ok := errors.AsType[*failedError](context.Cause(ctx)); ok {
		return failed
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return e.absence(ctx, err)
	}
	telling, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewell)
	defer cancel()
	e.tell(telling, err)
	return err
}

// lost is the error that names a rank of the world which has ended.
func (e *entry) lost(rank int, how string) error {
	return &driver.RankLostError{
		Ranks: []int{rank}, Members: e.cfg.Group.Ranks,
		Doing: "meeting the ranks of group " + e.cfg.Group.Name() + " (" + how + ")",
	}
}

// explained is why a rank was lost behind the joining: it may be one that could not join, and
// tells so a moment after it has closed its connections.
func (e *entry) explained(ctx context.Context, err error) error {
	if !errors.As(err, new(*driver.RankLostError)) && !errors.Is(err, driver.ErrFault) {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*hearing)
	defer cancel()
	if told, unknown := e.cfg.Store.Get(ctx, e.key("failed")); unknown == nil {
		return e.failure(told)
	}
	return err
}

// awaitRefusal ends the joining when a rank says that it could not.
func (e *entry) awaitRefusal(ctx context.Context, end context.CancelCauseFunc) {
	if told, err := e.cfg.Store.Get(ctx, e.key("failed")); err == nil {
		end(e.failure(told))
	}
}

// outcome says why the joining has not succeeded, if so.
func (e *entry) outcome(ctx context.Context) error {
	e.mu.Lock()
	left, err := e.left, e.err
	e.mu.Unlock()
	switch {
	case left == 0:
		return nil
	case err != nil && ctx.Err() == nil:
		return err
	default:
		return e.absence(ctx, err)
	}
}

// absence turns the end of the time into an AbsentError that names who did not come, or, if all
// have, to whom there is no connection.
func (e *entry) absence(ctx context.Context, err error) error {
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return errors.Join(err, context.Cause(ctx))
	}
	var awaited []int
	e.mu.Lock()
	for r, l := range e.links {
		if l == nil && r != e.cfg.Group.Rank {
			awaited = append(awaited, e.cfg.Group.Ranks[r])
		}
	}
	e.mu.Unlock()
	return e.roll.Absence(time.Since(e.begin), awaited, err)
}

func (e *entry) discard() {
	for _, l := range e.links {
		if l != nil {
			_ = l.conn.Close()
		}
	}
}

// listen opens a port and leaves its addresses in the store.
func (e *entry) listen(ctx context.Context) error {
	if err := e.shareToken(ctx); err != nil {
		return err
	}
	var config net.ListenConfig
	var err error
	e.listener, err = config.Listen(ctx, "tcp", net.JoinHostPort(e.cfg.Host, "0"))
	if err != nil {
		return err
	}
	addresses, err := e.addresses()
	if err == nil {
		value := []byte(strings.Join(addresses, " "))
		err = e.cfg.Store.Set(ctx, e.addressKey(e.cfg.Group.Rank), value)
	}
	if err != nil {
		return errors.Join(err, e.listener.Close())
	}
	return nil
}

// addresses lists where others can reach the listener, the likeliest first: the loopback is for
// machines that have nothing else.
func (e *entry) addresses() ([]string, error) {
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

// enter notes a connection, or what has ended the joining.
func (e *entry) enter(l *link, err error) {
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

// dial connects to a rank before this one, at the first of its addresses where it is.
func (e *entry) dial(ctx context.Context, r int) (*link, error) {
	value, err := e.cfg.Store.Get(ctx, e.addressKey(r))
	if err != nil {
		return nil, fmt.Errorf("asking for the address of rank %d: %w", e.cfg.Group.Ranks[r], err)
	}
	var errs []error
	for _, address := range strings.Fields(string(value)) {
		l, err := e.knock(ctx, r, address)
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

// knock tries one address.
func (e *entry) knock(ctx context.Context, r int, address string) (*link, error) {
	ctx, cancel := context.WithTimeout(ctx, introduction)
	defer cancel()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	l := newLink(r, conn.(*net.TCPConn))
	if err := e.introduce(ctx, l); err != nil {
		return nil, errors.Join(err, conn.Close())
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
				e.enter(l, nil)
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
