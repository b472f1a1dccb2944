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

// A rank connects to every rank with a lower number. Suppose that rank 0 has stored the addresses
// "10.0.0.5:4000 192.168.7.5:4000", and rank 1 connects to it:
//
//   - Rank 1 dials 10.0.0.5 and, a little later, 192.168.7.5. The first address is the one that is
//     most likely to be reachable.
//   - On the first connection that is established, rank 1 performs a handshake: it sends a hello,
//     which contains one half of the group's secret token, and rank 0 answers with the other half.
//   - If the handshake fails, rank 1 tries it on the next connection that is established. For
//     example, a busy rank with too many new connections closes the oldest ones.
//   - If no handshake succeeds, rank 1 pauses, and then begins another round with all addresses.
//   - If all addresses refuse the connection, rank 1 gives up: the process of rank 0 has exited.

const (
	// dialTimeout is the time after which a failed round is not repeated.
	dialTimeout = 20 * time.Second
	// endedTimeout is a shorter limit for rounds in which all connections are refused or closed. A
	// busy rank accepts a connection within this time.
	endedTimeout = 8 * time.Second
	// dialStagger is the delay in a round between dialing one address and the next.
	dialStagger = 200 * time.Millisecond
	// dialPause is the time between rounds.
	dialPause = 500 * time.Millisecond
)

// dialer connects to one rank with a lower number. It is used by one goroutine.
type dialer struct {
	*joiner
	rank           int    // group rank to connect to
	handshakeCount uint32 // number of handshakes so far
}

// dialAll starts a goroutine of j.tasks for each lower rank, which connects to the rank. It calls
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

// dial connects to the rank at one of its addresses, which are separated by spaces. It performs
// rounds until one succeeds, or until more rounds are useless.
func (d *dialer) dial(ctx context.Context, addresses string) (*link, error) {
	addressList := strings.Fields(addresses)
	if len(addressList) == 0 { // for example, the machine has only link-local addresses
		return nil, d.unreachableError(addresses, errNoAddress)
	}

	begin := time.Now()
	endedSince := begin // all connections since then were refused or closed
	for {
		l, errs := d.tryAddresses(ctx, addressList)
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

		hasEnded := ctx.Err() != nil
		hasTimedOut := time.Since(begin) > dialTimeout
		isPermanent := errors.Is(err, ErrProtocol)
		if hasEnded || hasTimedOut || isPermanent {
			return nil, d.unreachableError(addresses, err)
		}

		select {
		case <-time.After(dialPause):
		case <-ctx.Done(): // the next round fails at once
		}
	}
}

var errNoAddress = errors.New("the rank has found no usable address on its machine")

// unreachableError describes both ends of a connection that could not be established. err is the
// reason.
func (d *dialer) unreachableError(addresses string, err error) error {
	advice := "; all machines must be able to connect to each other directly on every port: " +
		"check for firewalls, proxies or NAT between them"
	if errors.Is(err, ErrProtocol) {
		advice = "" // the network works
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

// tryAddresses performs a round. It dials the addresses concurrently, but performs one handshake at
// a time. It returns a link, which is a connection after a successful handshake. If there is none,
// it returns nil and the errors of all addresses.
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
			cancel() // stops dialing other addresses
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

// handshake checks that both ends of a connection belong to the group, and returns a link. After an
// error, or if ctx ends first, it closes the connection.
func (d *dialer) handshake(ctx context.Context, conn *net.TCPConn) (*link, error) {
	interrupt := func() { _ = conn.SetDeadline(time.Now()) }
	stop := context.AfterFunc(ctx, interrupt)
	d.handshakeCount++
	err := d.exchangeTokens(conn)
	isInterrupted := !stop() // interrupt may still be running, and spoil the connection
	if isInterrupted && err == nil {
		err = ctx.Err()
	}

	if err != nil {
		closeErr := conn.Close()
		return nil, errors.Join(err, closeErr)
	}

	return newLink(d.rank, conn), nil
}

// exchangeTokens sends a hello with the first half of the token. It checks the second half, with
// which the other end answers.
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

// isRefused reports whether err means that no process listens at the address. Errors during the
// handshake have another meaning: a rank with too many connections closes some of them.
func isRefused(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }

// isEnded reports whether err means that the connection was refused, or closed by the other end. A
// proxy also closes connections if it cannot reach the rank.
func isEnded(err error) bool {
	return isRefused(err) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// allMatch reports whether matches returns true for every error.
func allMatch(errs []error, matches func(error) bool) bool {
	return !slices.ContainsFunc(errs, func(err error) bool { return !matches(err) })
}
