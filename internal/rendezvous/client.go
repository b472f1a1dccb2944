package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// maxIdleLinks is the number of connections that a client keeps while no call uses them. Few calls
// run concurrently.
const maxIdleLinks = 4

// Client accesses a store of keys and values that all ranks of a job share. It is safe for
// concurrent use.
//
// When a call returns without an error, all ranks can see its effect. When a call returns because
// its context was canceled, it may or may not have taken effect. A call returns ErrTooLarge for a
// key of more than 8 KiB, a value of more than 8 MiB, or more than 128 Ki keys.
type Client struct {
	*linkSet
	keyPrefix string // added to each key
}

// linkSet holds the connections to a store, which are called links. A client and those that
// WithPrefix derives from it share a linkSet.
type linkSet struct {
	// These fields do not change.
	addr string                               // address of the store, for errors
	dial func(context.Context) (*link, error) // opens a connection
	// serverRankPlus1 is the rank that serves the store, plus 1. It is 0 if no rank serves it.
	serverRankPlus1 int

	mu        sync.Mutex     // guards the fields below
	links     map[*link]bool // all open connections
	idleLinks []*link        // connections that no call uses
	freed     chan struct{}  // closed and reset to nil when a call returns its connection
	isClosed  bool           // Close was called
	onClose   func() error   // called by the first Close; may be nil
}

// ServedBy returns the rank that serves the store, or -1 if a launcher or PyTorch serves it.
func (c *linkSet) ServedBy() int { return c.serverRankPlus1 - 1 }

// newClient returns a client without connections. It calls dial when it needs one.
func newClient(addr string, dial func(context.Context) (*link, error)) *Client {
	return &Client{linkSet: &linkSet{addr: addr, dial: dial, links: map[*link]bool{}}}
}

// WithPrefix returns a client that adds prefix and a slash to every key. Both clients share their
// connections.
func WithPrefix(c *Client, prefix string) *Client {
	return &Client{linkSet: c.linkSet, keyPrefix: c.keyPrefix + prefix + "/"}
}

// NewLocal returns a client of a new store in this process. Closing the client closes the store.
func NewLocal() *Client {
	const noToken Token = "" // Only this process can reach the server.
	server := newServer("this process", noToken)
	c := server.Client()
	c.onClose = server.Close
	return c
}

// Close closes all connections, so that calls in progress return ErrClosed.
func (c *linkSet) Close() error {
	c.mu.Lock()
	var errs []error
	for l := range c.links {
		closeErr := l.conn.Close()
		errs = append(errs, closeErr)
	}

	clear(c.links)
	c.idleLinks = nil
	c.isClosed = true
	onClose := c.onClose
	c.onClose = nil
	c.mu.Unlock()
	if onClose != nil {
		closeErr := onClose()
		errs = append(errs, closeErr)
	}

	return errors.Join(errs...)
}

// acquireLink returns an idle connection or opens one. The caller must pass it to releaseLink.
//
// A server that is about to close accepts no connections, but still serves the existing ones. If
// opening fails for this reason, acquireLink waits up to maxLinkWait for a connection of another
// call.
func (c *linkSet) acquireLink(ctx context.Context) (*link, error) {
	var (
		dialErr error            // set once opening a connection has failed
		timeout <-chan time.Time // set together with dialErr
	)
	for {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}

		l, freed, err := c.takeIdle()
		if l != nil || err != nil {
			return l, err
		}

		if dialErr == nil {
			l, dialErr = c.openLink(ctx)
			if l != nil || !errors.Is(dialErr, ErrLost) {
				return l, dialErr
			}

			timeout = time.After(maxLinkWait)
			continue // Another call may have returned its connection meanwhile.
		}

		if freed == nil {
			return nil, dialErr // No other call has a connection.
		}

		select {
		case <-freed:
		case <-timeout:
			return nil, dialErr
		case <-ctx.Done():
		}
	}
}

// maxLinkWait bounds the wait for a connection. It is longer than most calls take.
const maxLinkWait = time.Second

// openLink opens a connection. Its error is ErrLost if the store cannot be reached.
func (c *linkSet) openLink(ctx context.Context) (*link, error) {
	l, err := c.dial(ctx)
	if err != nil {
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case !isTransient(err), errors.Is(err, ErrLost):
			return nil, err
		}

		return nil, fmt.Errorf("%w: %w", ErrLost, err)
	}

	if !c.addLink(l) {
		l.conn.Close()
		return nil, ErrClosed
	}

	return l, nil
}

// takeIdle returns an idle connection. If all connections are in use, it returns a channel that is
// closed when a call returns its connection. If there are no connections, both results are nil.
func (c *linkSet) takeIdle() (l *link, freed <-chan struct{}, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isClosed {
		return nil, nil, ErrClosed
	}

	if n := len(c.idleLinks); n > 0 {
		l = c.idleLinks[n-1]
		c.idleLinks = c.idleLinks[:n-1]
		return l, nil, nil
	}

	if len(c.links) == 0 {
		return nil, nil, nil
	}

	if c.freed == nil {
		c.freed = make(chan struct{})
	}

	return nil, c.freed, nil
}

// addLink adds a new connection. It returns false if the client is closed.
func (c *linkSet) addLink(l *link) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.isClosed {
		c.links[l] = true
	}

	return !c.isClosed
}

// releaseLink ends a call's use of l. It keeps l for other calls if possible, and closes it
// otherwise. err is the call's error. releaseLink returns err, or ErrClosed if Close caused err.
func (c *linkSet) releaseLink(l *link, err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.freed != nil {
		close(c.freed)
		c.freed = nil
	}

	isReusable := !l.isIncomplete && !c.isClosed
	if isReusable && len(c.idleLinks) < maxIdleLinks {
		c.idleLinks = append(c.idleLinks, l)
		return err
	}

	if l.isIncomplete && c.isClosed {
		err = ErrClosed // Close has interrupted the call.
	}

	delete(c.links, l)
	l.conn.Close()
	return err
}

// roundTrip sends the requests in b over a connection and calls readReply to read the replies.
func (c *linkSet) roundTrip(ctx context.Context, b []byte, readReply func(*decoder) error) error {
	ctx, cancel := withDefaultTimeout(ctx)
	defer cancel()
	l, err := c.acquireLink(ctx)
	if err != nil {
		return err
	}

	err = l.exchange(ctx, b, readReply)
	return c.releaseLink(l, err)
}
