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
	// endedTimeout bounds this time if every connection is refused or closed by the other side. A
	// busy rank closes some connections, but accepts one within this time.
	endedTimeout = 8 * time.Second
	// dialStagger is the delay between the connections of an attempt to different addresses.
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

// dialAll connects to all ranks with lower numbers, and calls fail for each error. It looks up one
// address at a time, because a pending lookup occupies a connection to the store.
func (j *joiner) dialAll(ctx context.Context, fail func(error)) {
	for r := range j.cfg.Group.Rank {
		value, err := j.cfg.Store.Get(ctx, j.addressKey(r))
		if err != nil {
			fail(fmt.Errorf("looking up the address of rank %d: %w", j.cfg.Group.Ranks[r], err))
			return
		}
		j.tasks.Go(func() {
			l, err := (&dialer{joiner: j, rank: r}).dial(ctx, string(value))
			if err != nil {
				fail(err)
				return
			}
			j.addLink(l)
		})
	}
}

// dial connects to the rank at one of its addresses, which are separated by spaces. It repeats
// failed attempts for up to dialTimeout or endedTimeout, unless every address refuses the
// connection.
func (d *dialer) dial(ctx context.Context, addresses string) (*link, error) {
	begin := time.Now()
	endedSince := begin // time since which every connection has been refused or closed
	for {
		l, errs := d.tryAddresses(ctx, strings.Fields(addresses))
		if l != nil {
			return l, nil
		}
		if allMatch(errs, isRefused) {
			return nil, d.rankLostError(d.cfg.Group.Ranks[d.rank],
				fmt.Sprintf("its addresses %q refuse connections", addresses))
		}
		if !allMatch(errs, isEnded) {
			endedSince = time.Now()
		}
		err := errors.Join(errs...)
		if time.Since(endedSince) > endedTimeout {
			err = fmt.Errorf("each connection ended before the rank answered: %w", err)
			return nil, d.unreachableError(addresses, err)
		}
		if ctx.Err() != nil || errors.Is(err, ErrProtocol) || time.Since(begin) > dialTimeout {
			return nil, d.unreachableError(addresses, err)
		}
		select {
		case <-time.After(dialPause):
		case <-ctx.Done():
		}
	}
}

func (d *dialer) unreachableError(addresses string, err error) error {
	advice := ""
	if !errors.Is(err, ErrProtocol) {
		advice = "; all machines must be able to connect to each other directly on every port: " +
			"check for firewalls, proxies or NAT between them"
	}
	return fmt.Errorf("connecting from %s to %s at %q: %w%s", control.HostName(),
		d.describeRank(d.rank), addresses, err, advice)
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
// returns a link for the first connection whose handshake succeeds, or nil and the errors of all
// addresses.
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
			conn, err := dialAfter(ctx, time.Duration(i)*dialStagger, address)
			results <- result{conn, err}
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
			_ = r.conn.Close()
		default:
			l, err := d.handshake(ctx, r.conn.(*net.TCPConn))
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

func dialAfter(ctx context.Context, delay time.Duration, address string) (net.Conn, error) {
	select {
	case <-time.After(delay):
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	conn, err := sys.Dialer().DialContext(ctx, "tcp", address)
	if err == nil {
		sys.CloseInForks(conn)
	}
	return conn, err
}

// isRefused reports whether err means that no process listens at the address. An error during the
// handshake does not: a rank with too many connections closes some of them.
func isRefused(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }

// isEnded reports whether err means that the connection was refused, or closed by the other side.
// A proxy also closes connections if it cannot reach the rank.
func isEnded(err error) bool {
	return isRefused(err) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

func allMatch(errs []error, matches func(error) bool) bool {
	return !slices.ContainsFunc(errs, func(err error) bool { return !matches(err) })
}

// handshake exchanges halves of the group's token with the other end of a connection: it sends the
// first half and verifies the second. If it fails, it closes the connection.
func (d *dialer) handshake(ctx context.Context, conn *net.TCPConn) (*link, error) {
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })
	defer stop()
	d.attempt++
	l := newLink(d.rank, conn)
	err := func() error {
		if _, err := conn.Write(d.encodeHello(d.rank, d.attempt, conn)); err != nil {
			return err
		}
		var answer [tokenHalf]byte
		if _, err := io.ReadFull(conn, answer[:]); err != nil {
			return err
		}
		if subtle.ConstantTimeCompare(answer[:], d.token[tokenHalf:]) != 1 {
			return fmt.Errorf("the rank does not have the token of the group: %w", ErrProtocol)
		}
		return nil
	}()
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return l, nil
}
