package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// maxIdleLinks is the number of connections that a client keeps while no call uses them.
const maxIdleLinks = 4

// Client accesses a store of keys and values that all ranks of a job share. It is safe for
// concurrent use.
//
// When a call returns without an error, all ranks can see its effect. A canceled call may have
// taken effect. A call returns ErrTooLarge for a key of more than 8 KiB, a value of more than
// 8 MiB, or more than 128 Ki keys.
type Client struct {
	*linkSet
	keyPrefix string // added to each key
}

// linkSet holds the connections to a store. Clients that WithPrefix returns share it.
type linkSet struct {
	// These fields do not change.
	addr            string                               // address of the store, for errors
	dial            func(context.Context) (*link, error) // opens a connection
	serverRankPlus1 int                                  // rank that serves the store, plus 1, or 0

	mu        sync.Mutex     // guards the fields below
	links     map[*link]bool // all open connections
	idleLinks []*link        // connections that no call uses
	freed     chan struct{}  // closed and set to nil when a call returns its connection
	isClosed  bool           // Close was called
	onClose   func() error   // called by Close, or nil
}

// ServedBy returns the rank that serves the store, or -1 if a launcher or PyTorch serves it.
func (c *linkSet) ServedBy() int { return c.serverRankPlus1 - 1 }

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
	server := newServer("this process", "")
	c := server.Client()
	c.onClose = server.Close
	return c
}

// Close closes all connections, so that calls in progress return ErrClosed.
func (c *linkSet) Close() error {
	c.mu.Lock()
	var errs []error
	for l := range c.links {
		errs = append(errs, l.conn.Close())
	}
	onClose := c.onClose
	c.links, c.idleLinks, c.isClosed, c.onClose = map[*link]bool{}, nil, true, nil
	c.mu.Unlock()
	if onClose != nil {
		errs = append(errs, onClose())
	}
	return errors.Join(errs...)
}

// acquireLink returns an idle connection or opens one. The caller must pass it to releaseLink. A
// server that is about to close accepts no connections, so acquireLink then waits up to
// maxLinkWait for another call to return its connection.
func (c *linkSet) acquireLink(ctx context.Context) (*link, error) {
	var (
		dialErr error
		timeout <-chan time.Time
	)
	for {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		l, freed, err := c.takeIdle()
		if l != nil || err != nil {
			return l, err
		}
		if dialErr != nil && freed == nil {
			return nil, dialErr
		}
		if dialErr == nil {
			l, dialErr = c.openLink(ctx)
			if l != nil || !errors.Is(dialErr, ErrLost) {
				return l, dialErr
			}
			timeout = time.After(maxLinkWait)
			continue // A connection may have become idle.
		}
		select {
		case <-freed:
		case <-timeout:
			return nil, dialErr
		case <-ctx.Done():
		}
	}
}

const maxLinkWait = time.Second

// openLink opens a connection. Its error is ErrLost if the store cannot be reached.
func (c *linkSet) openLink(ctx context.Context) (*link, error) {
	l, err := c.dial(ctx)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil && !isTransient(err), errors.Is(err, ErrLost):
		return nil, err
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrLost, err)
	case !c.addLink(l):
		l.conn.Close()
		return nil, ErrClosed
	}
	return l, nil
}

// takeIdle returns an idle connection, or else a channel that is closed when a call returns its
// connection. If there are no connections, both are nil.
func (c *linkSet) takeIdle() (l *link, freed <-chan struct{}, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch n := len(c.idleLinks); {
	case c.isClosed:
		return nil, nil, ErrClosed
	case n > 0:
		l, c.idleLinks = c.idleLinks[n-1], c.idleLinks[:n-1]
		return l, nil, nil
	case len(c.links) == 0:
		return nil, nil, nil
	case c.freed == nil:
		c.freed = make(chan struct{})
	}
	return nil, c.freed, nil
}

// addLink adds a new connection, and returns false if the client is closed.
func (c *linkSet) addLink(l *link) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.isClosed {
		c.links[l] = true
	}
	return !c.isClosed
}

// releaseLink keeps l for other calls or closes it. It returns err, or ErrClosed if Close caused
// err.
func (c *linkSet) releaseLink(l *link, err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.freed != nil {
		close(c.freed)
		c.freed = nil
	}
	switch {
	case !l.isIncomplete && !c.isClosed && len(c.idleLinks) < maxIdleLinks:
		c.idleLinks = append(c.idleLinks, l)
		return err
	case l.isIncomplete && c.isClosed:
		err = ErrClosed
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
	return c.releaseLink(l, l.exchange(ctx, b, readReply))
}
