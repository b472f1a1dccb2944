package tcp

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"time"

	"symmem/internal/control"
	"symmem/internal/sys"
)

const (
	dialTimeout = 20 * time.Second // for all rounds of dial
	// dial gives up if the rank or a proxy has closed every connection for closedTimeout. A busy
	// rank accepts one within this time.
	closedTimeout = 8 * time.Second
	dialStagger   = 200 * time.Millisecond // between the starts of dials in a round
	dialPause     = 500 * time.Millisecond // between rounds
)

// dialer connects to one lower-numbered rank. In each round, it dials all addresses of that rank,
// and performs handshakes on the connections one by one, until the first success.
type dialer struct {
	*joiner
	groupRank int    // rank to connect to
	attempts  uint32 // number of handshakes; the other rank keeps the connection of the last one
}

// dialAll connects to all lower-numbered ranks in the background and passes errors to fail. It
// looks up one rank at a time, because a pending lookup occupies a connection to the store.
func (j *joiner) dialAll(ctx context.Context, fail func(error)) {
	for groupRank := range j.cfg.Group.Rank {
		value, err := j.cfg.Store.Get(ctx, j.addressKey(groupRank))
		if err != nil {
			rank := j.cfg.Group.Ranks[groupRank]
			fail(fmt.Errorf("looking up the address of rank %d: %w", rank, err))
			return
		}

		j.tasks.Go(func() {
			d := &dialer{joiner: j, groupRank: groupRank}
			l, err := d.dial(ctx, string(value))
			if err != nil {
				fail(err)
				return
			}

			j.addLink(l)
		})
	}
}

// dial connects to one of the rank's space-separated addresses.
func (d *dialer) dial(ctx context.Context, addresses string) (*link, error) {
	addressList := strings.Fields(addresses)
	if len(addressList) == 0 {
		return nil, d.unreachableError(addresses, errNoAddress)
	}

	begin := time.Now()
	closedSince := begin // since then, every connection was refused or closed
	for {
		l, errs := d.tryAddresses(ctx, addressList)
		if l != nil {
			return l, nil
		}

		if allMatch(errs, isRefused) { // the rank's process has exited
			description := fmt.Sprintf("its addresses %q refuse connections", addresses)
			return nil, d.rankLostError(d.cfg.Group.Ranks[d.groupRank], description)
		}

		if !allMatch(errs, isRefusedOrClosed) {
			closedSince = time.Now()
		}

		err := errors.Join(errs...)
		hasReachedClosedTimeout := time.Since(closedSince) > closedTimeout
		if hasReachedClosedTimeout {
			err = fmt.Errorf("each connection ended before the rank answered: %w", err)
		}

		hasReachedDialTimeout := time.Since(begin) > dialTimeout
		isPermanent := errors.Is(err, ErrProtocol)
		if hasReachedClosedTimeout || hasReachedDialTimeout || isPermanent || ctx.Err() != nil {
			return nil, d.unreachableError(addresses, err)
		}

		select {
		case <-time.After(dialPause):
		case <-ctx.Done(): // the next round fails at once and returns
		}
	}
}

var errNoAddress = errors.New("the rank has found no usable address on its machine")

// unreachableError adds the names of both machines, the addresses and advice to err.
func (d *dialer) unreachableError(addresses string, err error) error {
	advice := ""
	if !errors.Is(err, ErrProtocol) {
		advice = "; all machines must be able to connect to each other directly on every port: " +
			"check for firewalls, proxies or NAT between them"
	}

	target := d.describeRank(d.groupRank)
	return fmt.Errorf("connecting from %s to %s at %q: %w%s",
		control.HostName(), target, addresses, err, advice)
}

// describeRank returns a text such as "rank 3 on node7".
func (j *joiner) describeRank(groupRank int) string {
	rank := j.cfg.Group.Ranks[groupRank]
	text := fmt.Sprintf("rank %d", rank)
	if machine := j.joinList.Machine(rank); machine != "" {
		text += " on " + machine
	}

	return text
}

// tryAddresses performs one round. It returns the connection whose handshake succeeded, or nil and
// the errors of all addresses.
func (d *dialer) tryAddresses(ctx context.Context, addresses []string) (*link, []error) {
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	type dialResult struct {
		conn *net.TCPConn
		err  error
	}
	results := make(chan dialResult, len(addresses))
	for i, address := range addresses {
		d.tasks.Go(func() {
			delay := time.Duration(i) * dialStagger
			conn, err := dialAfter(ctx, delay, address)
			results <- dialResult{conn: conn, err: err}
		})
	}

	var established *link
	var errs []error
	for range addresses {
		dialed := <-results
		if dialed.err != nil {
			errs = append(errs, dialed.err)
			continue
		}

		if established != nil {
			_ = dialed.conn.Close() // not needed
			continue
		}

		l, err := d.handshake(ctx, dialed.conn)
		if err != nil {
			errs = append(errs, fmt.Errorf("%v: %w", dialed.conn.RemoteAddr(), err))
			continue
		}

		established = l
		cancel() // stop dialing the other addresses
	}

	return established, errs
}

func dialAfter(ctx context.Context, delay time.Duration, address string) (*net.TCPConn, error) {
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
	return conn.(*net.TCPConn), nil
}

// handshake authenticates both ends of a connection. It closes the connection if it returns an
// error.
func (d *dialer) handshake(ctx context.Context, conn *net.TCPConn) (*link, error) {
	stopWatchingContext := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })
	d.attempts++
	err := d.exchangeTokens(conn)
	wasInTime := stopWatchingContext() // otherwise, the expired deadline makes conn unusable
	if err == nil && !wasInTime {
		err = ctx.Err()
	}

	if err != nil {
		closeErr := conn.Close()
		return nil, errors.Join(err, closeErr)
	}

	return newLink(d.groupRank, conn), nil
}

// exchangeTokens sends a hello with the first half of the token, and checks that the other end
// answers with the second half.
func (d *dialer) exchangeTokens(conn *net.TCPConn) error {
	if _, err := conn.Write(d.encodeHello(d.groupRank, d.attempts, conn)); err != nil {
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

// isRefusedOrClosed reports whether err is a refused connection, or one closed during the handshake
// by an overloaded rank or by a proxy.
func isRefusedOrClosed(err error) bool {
	return isRefused(err) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

func allMatch(errs []error, matches func(error) bool) bool {
	for _, err := range errs {
		if !matches(err) {
			return false
		}
	}

	return true
}
