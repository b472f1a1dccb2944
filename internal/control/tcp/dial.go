package tcp

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"syscall"
	"time"

	"symmem/internal/control"
	"symmem/internal/sys"
)

// Each rank connects to every lower-numbered rank, which may have several addresses. In each round,
// it dials all addresses, and tries a handshake on one connection after the other.

const (
	dialTimeout = 20 * time.Second // no new round begins after this time
	// closedTimeout limits rounds in which every connection is refused or closed. A busy rank
	// accepts a connection sooner.
	closedTimeout = 8 * time.Second
	dialStagger   = 200 * time.Millisecond // between the addresses of a round
	dialPause     = 500 * time.Millisecond // between rounds
)

// dialer connects to one lower-numbered rank, on one goroutine.
type dialer struct {
	*joiner
	rank           int // group rank to connect to
	handshakeCount uint32
}

// dialAll connects to all lower ranks in the background and passes errors to fail. It looks up
// one address at a time, because a pending lookup occupies a connection to the store.
func (j *joiner) dialAll(ctx context.Context, fail func(error)) {
	for r := range j.cfg.Group.Rank {
		value, err := j.cfg.Store.Get(ctx, j.addressKey(r))
		if err != nil {
			fail(fmt.Errorf("looking up the address of rank %d: %w", j.cfg.Group.Ranks[r], err))
			return
		}

		j.tasks.Go(func() {
			d := &dialer{joiner: j, rank: r}
			l, err := d.dial(ctx, string(value))
			if err != nil {
				fail(err)
				return
			}

			j.addLink(l)
		})
	}
}

// dial connects to the rank at one of its space-separated addresses.
func (d *dialer) dial(ctx context.Context, addresses string) (*link, error) {
	addressList := strings.Fields(addresses)
	if len(addressList) == 0 {
		return nil, d.unreachableError(addresses, errNoAddress)
	}

	begin := time.Now()
	closedSince := begin // since then, all connections were refused or closed
	for {
		l, errs := d.tryAddresses(ctx, addressList)
		if l != nil {
			return l, nil
		}

		if allMatch(errs, isRefused) { // the process has exited
			description := fmt.Sprintf("its addresses %q refuse connections", addresses)
			return nil, d.rankLostError(d.cfg.Group.Ranks[d.rank], description)
		}

		if !allMatch(errs, isRefusedOrClosed) {
			closedSince = time.Now()
		}

		err := errors.Join(errs...)
		if time.Since(closedSince) > closedTimeout {
			err = fmt.Errorf("each connection ended before the rank answered: %w", err)
			return nil, d.unreachableError(addresses, err)
		}

		isCanceled := ctx.Err() != nil
		hasTimedOut := time.Since(begin) > dialTimeout
		isPermanent := errors.Is(err, ErrProtocol)
		if isCanceled || hasTimedOut || isPermanent {
			return nil, d.unreachableError(addresses, err)
		}

		select {
		case <-time.After(dialPause):
		case <-ctx.Done(): // makes the next round fail
		}
	}
}

var errNoAddress = errors.New("the rank has found no usable address on its machine")

// unreachableError adds both ends of the failed connection to err.
func (d *dialer) unreachableError(addresses string, err error) error {
	advice := ""
	isNetworkFault := !errors.Is(err, ErrProtocol)
	if isNetworkFault {
		advice = "; all machines must be able to connect to each other directly on every port: " +
			"check for firewalls, proxies or NAT between them"
	}

	target := d.describeRank(d.rank)
	return fmt.Errorf("connecting from %s to %s at %q: %w%s",
		control.HostName(), target, addresses, err, advice)
}

// describeRank returns a text such as "rank 3 on node7" for group rank r.
func (j *joiner) describeRank(r int) string {
	text := fmt.Sprintf("rank %d", j.cfg.Group.Ranks[r])
	if name := j.joinList.Machine(j.cfg.Group.Ranks[r]); name != "" {
		text += " on " + name
	}

	return text
}

// tryAddresses performs one round. It returns the first connection with a successful handshake, or
// nil and the errors of all addresses.
func (d *dialer) tryAddresses(ctx context.Context, addresses []string) (*link, []error) {
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	type result struct {
		conn net.Conn
		err  error
	}
	results := make(chan result, len(addresses))
	for i, address := range addresses {
		d.tasks.Go(func() {
			delay := time.Duration(i) * dialStagger
			conn, err := dialAfter(ctx, delay, address)
			results <- result{conn: conn, err: err}
		})
	}

	var established *link
	var errs []error
	for range addresses {
		r := <-results
		switch {
		case r.err != nil:
			errs = append(errs, r.err)
		case established != nil:
			_ = r.conn.Close() // not needed
		default:
			l, err := d.handshake(ctx, r.conn.(*net.TCPConn)) // dialAfter dials "tcp"
			if err != nil {
				errs = append(errs, fmt.Errorf("%v: %w", r.conn.RemoteAddr(), err))
				continue
			}

			established = l
			cancel() // stop dialing the other addresses
		}
	}

	return established, errs
}

func dialAfter(ctx context.Context, delay time.Duration, address string) (net.Conn, error) {
	select {
	case <-time.After(delay):
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}

	conn, err := sys.Dialer().DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}

	sys.CloseInForks(conn) // a child process must not keep the connection open
	return conn, nil
}

// handshake proves to each end of a connection that the other end belongs to the group. It closes
// the connection if it returns an error.
func (d *dialer) handshake(ctx context.Context, conn *net.TCPConn) (*link, error) {
	interrupt := func() { _ = conn.SetDeadline(time.Now()) }
	stop := context.AfterFunc(ctx, interrupt)
	d.handshakeCount++
	err := d.exchangeTokens(conn)
	isInterrupted := !stop()
	if isInterrupted && err == nil { // interrupt may spoil the connection later
		err = ctx.Err()
	}

	if err != nil {
		closeErr := conn.Close()
		return nil, errors.Join(err, closeErr)
	}

	return newLink(d.rank, conn), nil
}

// exchangeTokens sends a hello with the first half of the token, and checks that the other end
// answers with the second half.
func (d *dialer) exchangeTokens(conn *net.TCPConn) error {
	encodedHello := d.encodeHello(d.rank, d.handshakeCount, conn)
	if _, err := conn.Write(encodedHello); err != nil {
		return err
	}

	var answer [tokenHalf]byte
	if _, err := io.ReadFull(conn, answer[:]); err != nil {
		return err
	}

	isAuthentic := subtle.ConstantTimeCompare(answer[:], d.token[tokenHalf:]) == 1
	if !isAuthentic {
		return fmt.Errorf("the rank does not have the token of the group: %w", ErrProtocol)
	}

	return nil
}

// isRefused reports whether err means that no process listens at the address.
func isRefused(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }

// isRefusedOrClosed also matches connections closed during the handshake, either by a rank with too
// many connections or by a proxy that cannot reach the rank.
func isRefusedOrClosed(err error) bool {
	return isRefused(err) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

func allMatch(errs []error, matches func(error) bool) bool {
	return !slices.ContainsFunc(errs, func(err error) bool { return !matches(err) })
}
