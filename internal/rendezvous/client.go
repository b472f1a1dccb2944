package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// idleLinks is how many unused connections a client keeps. One call at a time can use a
// connection, and most programs have few that wait at once.
const idleLinks = 4

// Client is a store of small keys and values that all ranks of a job share, over connections to one
// server. It is safe for concurrent use. Each call takes an unused connection, or makes a new one:
// the protocol allows one outstanding request a connection, and a call that waits must not hold up
// the call that it waits for.
//
// A call that has returned without error has taken effect for all ranks. A call that was cancelled
// may have taken effect. Keys are at most 8 KiB, values 8 MiB, and a call names at most 128 Ki keys
// (ErrTooLarge).
//
// A Client with a prefix is a view: its keys lie under the prefix, and its connections are those of
// the client that it is a view of.
type Client struct {
	*links
	prefix string
}

// links are the connections to one server.
type links struct {
	// addr, dial and server are immutable once others have the client; server is the world rank
	// that serves the store, plus 1, or 0 where that is not known.
	addr   string
	dial   func(context.Context) (*link, error)
	server int

	mu sync.Mutex
	// Guarded by mu: all connections, those of them that no call uses, the state, and what
	// else Close must end.
	all    map[*link]bool
	idle   []*link
	closed bool
	atEnd  func() error
}

// ServedBy is the world rank that serves the store, or -1 where none is known to: then a launcher
// serves it, or PyTorch.
func (c *links) ServedBy() int { return c.server - 1 }

func newClient(addr string, dial func(context.Context) (*link, error)) *Client {
	return &Client{links: &links{addr: addr, dial: dial, all: map[*link]bool{}}}
}

// WithPrefix returns a view of a client in which every key lies under prefix, joined by a slash as
// PyTorch's PrefixStore joins them.
func WithPrefix(c *Client, prefix string) *Client {
	return &Client{links: c.links, prefix: c.prefix + prefix + "/"}
}

// NewLocal returns a store for ranks that are goroutines of this process: a server without a
// socket, and a client for all of them. Close ends both.
func NewLocal() *Client {
	server := newServer("this process", "")
	c := server.Client()
	c.atEnd = server.Close
	return c
}

// Close ends all connections; calls in progress return ErrClosed. Closing twice is harmless.
func (c *links) Close() error {
	c.mu.Lock()
	var errs []error
	for l := range c.all {
		errs = append(errs, l.conn.Close())
	}
	atEnd := c.atEnd
	c.all, c.idle, c.closed, c.atEnd = map[*link]bool{}, nil, true, nil
	c.mu.Unlock()
	if atEnd != nil {
		errs = append(errs, atEnd())
	}
	return errors.Join(errs...)
}

// acquire takes the connection that was used last, or makes one.
func (c *links) acquire(ctx context.Context) (*link, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if l, err := c.reuse(); l != nil || err != nil {
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
	case !c.adopt(l):
		l.conn.Close()
		return nil, ErrClosed
	}
	return l, nil
}

func (c *links) reuse() (*link, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, ErrClosed
	}
	if len(c.idle) == 0 {
		return nil, nil
	}
	l := c.idle[len(c.idle)-1]
	c.idle = c.idle[:len(c.idle)-1]
	return l, nil
}

// adopt makes Close responsible for a new connection, unless the client is closed.
func (c *links) adopt(l *link) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.all[l] = true
	}
	return !c.closed
}

// release ends a call's use of a connection: others may use it next, unless a reply is incomplete.
// It returns the call's error, and ErrClosed where our Close caused that.
func (c *links) release(l *link, err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case !l.incomplete && !c.closed && len(c.idle) < idleLinks:
		c.idle = append(c.idle, l)
		return err
	case l.incomplete && c.closed:
		err = ErrClosed
	}
	delete(c.all, l)
	l.conn.Close()
	return err
}

// ask sends the bytes of one request, already checked, and reads its reply.
func (c *links) ask(ctx context.Context, b []byte, read func(*decoder) error) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	l, err := c.acquire(ctx)
	if err != nil {
		return err
	}
	return c.release(l, l.exchange(ctx, b, read))
}
