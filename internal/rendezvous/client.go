package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

const maxIdleLinks = 4

// Client accesses a store of small keys and values that all ranks of a job share. It is safe for
// concurrent use.
//
// When a call returns without an error, all ranks can see its effect. A canceled call may or may
// not have taken effect. A call returns ErrTooLarge for a key of more than 8 KiB, a value of more
// than 8 MiB, or more than 128 Ki keys.
type Client struct {
	*linkSet
	keyPrefix string
}

type linkSet struct {
	// These fields do not change after the client is shared. serverRankPlus1 is 0 if no rank serves
	// the store.
	addr            string
	dial            func(context.Context) (*link, error)
	serverRankPlus1 int

	mu        sync.Mutex     // guards the fields below
	links     map[*link]bool // all connections
	idleLinks []*link        // connections that no call uses
	isClosed  bool
	onClose   func() error // called by Close, or nil
}

// ServedBy returns the world rank that serves the store, or -1 if a launcher or PyTorch serves it.
func (c *linkSet) ServedBy() int { return c.serverRankPlus1 - 1 }

func newClient(addr string, dial func(context.Context) (*link, error)) *Client {
	return &Client{linkSet: &linkSet{addr: addr, dial: dial, links: map[*link]bool{}}}
}

// WithPrefix returns a client that adds a prefix and a slash to every key, as PyTorch's PrefixStore
// does. Both clients share their connections.
func WithPrefix(c *Client, prefix string) *Client {
	return &Client{linkSet: c.linkSet, keyPrefix: c.keyPrefix + prefix + "/"}
}

// NewLocal returns a client of a new store in this process, without a socket. Closing the client
// also closes the store.
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

func (c *linkSet) acquireLink(ctx context.Context) (*link, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if l, err := c.takeIdle(); l != nil || err != nil {
		return l, err
	}
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

func (c *linkSet) takeIdle() (*link, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isClosed {
		return nil, ErrClosed
	}
	if len(c.idleLinks) == 0 {
		return nil, nil
	}
	l := c.idleLinks[len(c.idleLinks)-1]
	c.idleLinks = c.idleLinks[:len(c.idleLinks)-1]
	return l, nil
}

func (c *linkSet) addLink(l *link) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.isClosed {
		c.links[l] = true
	}
	return !c.isClosed
}

// releaseLink makes a connection available to other calls, or closes it. It returns ErrClosed if
// Close caused err, and otherwise err.
func (c *linkSet) releaseLink(l *link, err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
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

func (c *linkSet) roundTrip(ctx context.Context, b []byte, readReply func(*decoder) error) error {
	ctx, cancel := withDefaultTimeout(ctx)
	defer cancel()
	l, err := c.acquireLink(ctx)
	if err != nil {
		return err
	}
	return c.releaseLink(l, l.exchange(ctx, b, readReply))
}
