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

const (
	// dialTimeout bounds the time of all attempts to reach a rank.
	dialTimeout = 20 * time.Second
	// endedTimeout is a shorter limit. It applies while the other side refuses or closes every
	// connection. A busy rank closes some connections, but accepts one within this time.
	endedTimeout = 8 * time.Second
	// dialStagger is the delay before an attempt dials the next address of the rank. The first
	// addresses are the most reachable ones.
	dialStagger = 200 * time.Millisecond
	// dialPause is the time between attempts.
	dialPause = 500 * time.Millisecond
)

// dialer connects to one rank with a lower number. It is used by one goroutine.
type dialer struct {
	*joiner
	rank    int    // group rank to connect to
	attempt uint32 // number of handshakes so far
}

// dialAll starts to connect to all ranks with lower numbers, in goroutines of j.tasks. It calls
// fail for each error. It looks up one address at a time, because a pending lookup occupies a
// connection to the store.
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

// dial connects to the rank at one of its addresses, which are separated by spaces. It repeats
// failed attempts for up to dialTimeout or endedTimeout. If every address refuses the connection,
// it returns an error at once: the rank's process has exited.
func (d *dialer) dial(ctx context.Context, addresses string) (*link, error) {
	begin := time.Now()
	endedSince := begin // time since which every connection has been refused or closed
	for {
		l, errs := d.tryAddresses(ctx, strings.Fields(addresses))
		if l != nil {
			return l, nil
		}

		if allMatch(errs, isRefused) {
			description := fmt.Sprintf("its addresses %q refuse connections", addresses)
			return nil, d.rankLostError(d.cfg.Group.Ranks[d.rank], description)
		}

		if !allMatch(errs, isEnded) {
			endedSince = time.Now()
		}

		err := errors.Join(errs...)
		if time.Since(endedSince) > endedTimeout {
			err = fmt.Errorf("each connection ended before the rank answered: %w", err)
			return nil, d.unreachableError(addresses, err)
		}

		canBeRepeated := !errors.Is(err, ErrProtocol)
		hasTimedOut := time.Since(begin) > dialTimeout
		if ctx.Err() != nil || !canBeRepeated || hasTimedOut {
			return nil, d.unreachableError(addresses, err)
		}

		select {
		case <-time.After(dialPause):
		case <-ctx.Done(): // the next attempt fails at once
		}
	}
}

// unreachableError describes both ends of a connection that could not be established. err is the
// reason.
func (d *dialer) unreachableError(addresses string, err error) error {
	advice := ""
	if !errors.Is(err, ErrProtocol) {
		advice = "; all machines must be able to connect to each other directly on every port: " +
			"check for firewalls, proxies or NAT between them"
	}

	peer := d.describeRank(d.rank)
	return fmt.Errorf("connecting from %s to %s at %q: %w%s",
		control.HostName(), peer, addresses, err, advice)
}

// describeRank returns a text such as "rank 3 on node7". r is a group rank.
func (j *joiner) describeRank(r int) string {
	text := fmt.Sprintf("rank %d", j.cfg.Group.Ranks[r])
	if name := j.joinList.Machine(j.cfg.Group.Ranks[r]); name != "" {
		text += " on " + name
	}

	return text
}

// tryAddresses connects to all addresses concurrently, but performs one handshake at a time. It
// returns a link for the first connection whose handshake succeeds. If none succeeds, it returns
// nil and the errors of all addresses.
func (d *dialer) tryAddresses(ctx context.Context, addresses []string) (*link, []error) {
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	type result struct {
		conn net.Conn
		err  error
	}
	results := make(chan result, len(addresses)) // has room for all, so no sender waits
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
			_ = r.conn.Close() // it was established before cancel took effect
		default:
			l, err := d.handshake(ctx, r.conn.(*net.TCPConn)) // dialAfter dials "tcp"
			if err != nil {
				errs = append(errs, fmt.Errorf("%v: %w", r.conn.RemoteAddr(), err))
				continue
			}

			established = l
			cancel() // stops attempts to reach other addresses
		}
	}

	return established, errs
}

// dialAfter connects to an address after a delay.
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

	sys.CloseInForks(conn) // so that the connection ends with this process
	return conn, nil
}

// isRefused reports whether err means that no process listens at the address. Errors during the
// handshake have another meaning: a rank with too many connections closes some of them.
func isRefused(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }

// isEnded reports whether err means that the connection was refused, or closed by the other side.
// A proxy also closes connections if it cannot reach the rank.
func isEnded(err error) bool {
	return isRefused(err) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// allMatch reports whether matches returns true for every error.
func allMatch(errs []error, matches func(error) bool) bool {
	return !slices.ContainsFunc(errs, func(err error) bool { return !matches(err) })
}

// handshake authenticates both ends of a connection and returns a link for it. If it fails, it
// closes the connection.
func (d *dialer) handshake(ctx context.Context, conn *net.TCPConn) (*link, error) {
	interrupt := func() { _ = conn.SetDeadline(time.Now()) }
	stopWatchingContext := context.AfterFunc(ctx, interrupt)
	d.attempt++
	err := d.exchangeTokens(conn)
	isInterrupted := !stopWatchingContext() // interrupt may also run later
	if isInterrupted && err == nil {
		err = ctx.Err()
	}

	if err != nil {
		closeErr := conn.Close()
		return nil, errors.Join(err, closeErr)
	}

	return newLink(d.rank, conn), nil
}

// exchangeTokens sends a hello with the first half of the group's token. It verifies the second
// half, with which the other end answers.
func (d *dialer) exchangeTokens(conn *net.TCPConn) error {
	encodedHello := d.encodeHello(d.rank, d.attempt, conn)
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
