package tcp

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"symmem/driver"
	"symmem/internal/control"
	"symmem/internal/rendezvous"
	"symmem/internal/sys"
)

const (
	handshakeTimeout = 5 * time.Second
	// maxUnauthenticated limits accepted connections in their handshake, in addition to one per
	// rank.
	maxUnauthenticated = 64
)

// joiner connects this rank to all others during Join.
type joiner struct {
	cfg      Config
	begin    time.Time
	joinList control.JoinList
	token    token
	listener net.Listener
	tasks    sync.WaitGroup

	allConnected chan struct{} // closed when missingLinkCount is 0

	mu               sync.Mutex // guards the fields below
	links            []*link    // by group rank
	missingLinkCount int        // ranks without a connection
	unauthenticated  []net.Conn // accepted connections in their handshake, oldest first
}

// connect stores an error for the other ranks.
func (j *joiner) connect(ctx context.Context) ([]*link, error) {
	n := len(j.cfg.Group.Ranks)
	j.links, j.missingLinkCount, j.allConnected = make([]*link, n), n-1, make(chan struct{})
	if n == 1 {
		return j.links, nil
	}

	j.begin, j.joinList = time.Now(), control.JoinList{Store: j.cfg.Store, Group: j.cfg.Group}
	if err := j.joinList.Add(ctx); err != nil {
		return nil, err
	}

	defer j.joinList.StartWarnings(j.cfg.Late, func() []int { return nil })()
	connectCtx, stop := context.WithCancel(ctx)
	// Store the error before the connections close, for peers that notice.
	err := j.joinError(ctx, j.connectAll(connectCtx))
	stop()
	if j.listener != nil {
		err = errors.Join(err, j.listener.Close())
	}

	j.tasks.Wait()
	if err != nil {
		j.closeLinks()
		return nil, err
	}

	return j.links, nil
}

// connectAll waits for all connections. Its goroutines run until ctx is done.
func (j *joiner) connectAll(ctx context.Context) error {
	errCtx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	j.tasks.Go(func() {
		if err := j.peerFailure(ctx); err != nil {
			fail(err)
		}
	})
	if err := j.listen(ctx); err != nil {
		return j.absentError(ctx, err)
	}

	j.tasks.Go(func() { j.accept(ctx, fail) })
	j.tasks.Go(func() { j.dialAll(ctx, fail) })
	select {
	case <-j.allConnected:
		return nil
	case <-errCtx.Done():
		return j.absentError(ctx, context.Cause(errCtx))
	}
}

// peerError wraps an error from a rank that could not join.
type peerError struct{ error }

func (e *peerError) Unwrap() error { return e.error }

func (j *joiner) publishFailure(ctx context.Context, err error) {
	value := append([]byte(strconv.Itoa(j.cfg.Group.Rank)+" "), control.EncodeFailure(err)...)
	// If Set fails, other ranks wait until their timeout.
	_ = j.cfg.Store.Set(ctx, j.cfg.key("failed"), value)
}

func (j *joiner) decodeFailure(value []byte) *peerError {
	sender, report, _ := bytes.Cut(value, []byte(" "))
	all := make([][]byte, len(j.cfg.Group.Ranks))
	r, err := strconv.Atoi(string(sender))
	if err != nil || r < 0 || r >= len(all) {
		return &peerError{fmt.Errorf("another rank could not join, and its error is "+
			"unreadable: %s", control.Printable(string(value)))}
	}

	all[r] = report
	return &peerError{cmp.Or(control.DecodeFailures(j.cfg.Group.Ranks, all, "joining the group"),
		fmt.Errorf("rank %d could not join", j.cfg.Group.Ranks[r]))}
}

// joinError returns another rank's error, if that rank failed first, or else err. It stores err for
// the other ranks unless it is a timeout.
func (j *joiner) joinError(ctx context.Context, err error) error {
	if err == nil || errors.Is(ctx.Err(), context.DeadlineExceeded) ||
		errors.As(err, new(*peerError)) {
		return err
	}

	if ended, ok := errors.AsType[*rendezvous.EndedError](err); ok {
		err = j.rankLostError(ended.Rank, ended.Description)
	}

	// err may be a consequence of an error that another rank has not stored yet.
	peerCtx, cancel := context.WithTimeout(ctx, ackTimeout)
	defer cancel()
	if err := j.peerFailure(peerCtx); err != nil {
		return err
	}

	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return j.absentError(ctx, err)
	}

	storeCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	j.publishFailure(storeCtx, err)
	return err
}

func (j *joiner) rankLostError(rank int, how string) error {
	return &driver.RankLostError{
		Ranks: []int{rank}, Members: j.cfg.Group.Ranks,
		InCall: "joining group " + j.cfg.Group.Name() + " (" + how + ")",
	}
}

// peerFailureOr returns another rank's stored error, or err. It waits briefly, because a rank may
// store its error after its connections close.
func (j *joiner) peerFailureOr(ctx context.Context, err error) error {
	if !errors.As(err, new(*driver.RankLostError)) && !errors.Is(err, driver.ErrFault) {
		return err
	}

	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*ackTimeout)
	defer cancel()
	if failure := j.peerFailure(ctx); failure != nil {
		return failure
	}

	return err
}

// peerFailure waits for another rank to store the error that kept it from joining. It returns nil
// if the context ends first.
func (j *joiner) peerFailure(ctx context.Context) *peerError {
	if encoded, err := j.cfg.Store.Get(ctx, j.cfg.key("failed")); err == nil {
		return j.decodeFailure(encoded)
	}

	return nil
}

// absentError turns a timeout into an AbsentError about ranks that have not begun to join, or else
// about those without a connection. It returns nil if the last rank has connected meanwhile. It
// joins other errors with the context's cause.
func (j *joiner) absentError(ctx context.Context, err error) error {
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
			err = errors.Join(err, cause)
		}

		return err
	}

	var awaited []int
	j.mu.Lock()
	for r, l := range j.links {
		if l == nil && r != j.cfg.Group.Rank {
			awaited = append(awaited, j.cfg.Group.Ranks[r])
		}
	}

	j.mu.Unlock()
	if len(awaited) == 0 {
		return nil
	}

	return j.joinList.TimeoutError(time.Since(j.begin), awaited, err)
}

func (j *joiner) closeLinks() {
	for _, l := range j.links {
		if l != nil {
			_ = l.conn.Close()
		}
	}
}

func (j *joiner) listen(ctx context.Context) error {
	if err := j.shareToken(ctx); err != nil {
		return err
	}

	var config net.ListenConfig
	var err error
	j.listener, err = config.Listen(ctx, "tcp", net.JoinHostPort(j.cfg.Host, "0"))
	if err != nil {
		return err
	}

	sys.CloseInForks(j.listener)
	addresses, err := j.addresses()
	if err != nil {
		return err
	}

	value := []byte(strings.Join(addresses, " "))
	return j.cfg.Store.Set(ctx, j.addressKey(j.cfg.Group.Rank), value)
}

func (j *joiner) addressKey(groupRank int) string { return j.cfg.key(strconv.Itoa(groupRank)) }

// addresses lists the listener's addresses, the most reachable first.
func (j *joiner) addresses() ([]string, error) {
	local := j.listener.Addr().(*net.TCPAddr)
	if !local.IP.IsUnspecified() {
		return []string{local.String()}, nil
	}

	interfaces, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("listing this machine's addresses: %w", err)
	}

	var ips []net.IP
	for _, a := range interfaces {
		if n, ok := a.(*net.IPNet); ok && (n.IP.IsGlobalUnicast() || n.IP.IsLoopback()) {
			ips = append(ips, n.IP)
		}
	}

	slices.SortStableFunc(ips, func(a, b net.IP) int { return reachability(b) - reachability(a) })
	var list []string
	for _, ip := range ips {
		list = append(list, (&net.TCPAddr{IP: ip, Port: local.Port}).String())
	}

	return list, nil
}

func reachability(ip net.IP) int {
	switch {
	case ip.IsLoopback():
		return 0
	case ip.To4() == nil:
		return 1
	default:
		return 2
	}
}

// addLink keeps the latest attempt: the connecting rank has abandoned others.
func (j *joiner) addLink(l *link) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if other := j.links[l.rank]; other != nil {
		if other.attempt > l.attempt {
			l, other = other, l
		}

		_ = other.conn.Close()
		j.links[l.rank] = l
		return
	}

	j.links[l.rank] = l
	if j.missingLinkCount--; j.missingLinkCount == 0 {
		close(j.allConnected)
	}
}

// addUnauthenticated closes the oldest connection if there are too many: strangers with silent
// connections must not delay a rank.
func (j *joiner) addUnauthenticated(conn net.Conn) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.unauthenticated = append(j.unauthenticated, conn)
	if len(j.unauthenticated) > len(j.links)+maxUnauthenticated {
		_ = j.unauthenticated[0].Close()
		j.unauthenticated = j.unauthenticated[1:]
	}
}

// removeUnauthenticated keeps addUnauthenticated from closing a connection. It returns false if the
// connection was removed or closed before.
func (j *joiner) removeUnauthenticated(conn net.Conn) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	i := slices.Index(j.unauthenticated, conn)
	if i < 0 {
		return false
	}

	j.unauthenticated = slices.Delete(j.unauthenticated, i, i+1)
	return true
}

// accept accepts connections from higher-numbered ranks until the listener is closed. It calls fail
// if a rank has connected through NAT.
func (j *joiner) accept(ctx context.Context, fail func(error)) {
	for {
		conn, err := j.listener.Accept()
		if err != nil {
			return
		}

		sys.CloseInForks(conn)
		j.addUnauthenticated(conn)
		j.tasks.Go(func() {
			defer j.removeUnauthenticated(conn)
			l, err := j.acceptPeer(ctx, conn.(*net.TCPConn))
			if l != nil {
				j.addLink(l)
				return
			}

			if err != nil {
				fail(err)
			}

			_ = conn.Close()
		})
	}
}

// acceptPeer verifies the first half of the token and sends the second. It returns nil if that
// fails, but an error for a connection through NAT.
func (j *joiner) acceptPeer(ctx context.Context, conn *net.TCPConn) (*link, error) {
	if conn.SetDeadline(time.Now().Add(handshakeTimeout)) != nil || sys.DetectSilence(conn) != nil {
		return nil, nil
	}

	stopWatchingContext := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })
	defer stopWatchingContext()
	var b [helloBytes]byte
	if _, err := io.ReadFull(conn, b[:]); err != nil {
		return nil, nil
	}

	h, err := j.decodeHello(b)
	if err != nil {
		return nil, nil
	}

	if err := j.checkAddresses(&h, conn); err != nil {
		return nil, err
	}

	if !j.removeUnauthenticated(conn) {
		return nil, nil
	}

	if _, err := conn.Write(j.token[tokenHalf:]); err != nil {
		return nil, nil
	}

	if !stopWatchingContext() { // ctx is done, and the deadline may still be set
		return nil, nil
	}

	if conn.SetDeadline(time.Time{}) != nil {
		return nil, nil
	}

	l := newLink(h.rank, conn)
	l.attempt = h.attempt
	return l, nil
}
