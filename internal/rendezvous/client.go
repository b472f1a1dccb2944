package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// A Client sends requests to the server of a store. The connections to the server are called links.
// A link serves one call, such as Get, at a time:
//
//   - Suppose that two calls run at the same time. Each uses a link that no other call uses, or
//     opens one.
//   - When the calls return, both links become idle. The next call uses one of them.
//   - Suppose that the context of a call is canceled while the reply is arriving. The link is then
//     incomplete, and is closed: a later call would read the rest of this reply.
//
// A server that is about to close accepts no new connections, but still serves the existing links.
// A call that cannot open a link therefore waits for a link of another call.

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

// linkSet holds the links to a store. A client and those that WithPrefix derives from it share a
// linkSet.
type linkSet struct {
	// These fields do not change.
	addr string                               // address of the store, for errors
	dial func(context.Context) (*link, error) // opens a link
	// serverRankPlus1 is the rank that serves the store, plus 1. It is 0 if this process serves the
	// store, or if no rank does.
	serverRankPlus1 int

	mu        sync.Mutex     // guards the fields below
	links     map[*link]bool // all open links; all values are true
	idleLinks []*link        // links that no call uses
	released  chan struct{}  // closed when a call releases its link; nil if no call waits for this
	isClosed  bool           // whether Close has been called
	onClose   func() error   // called by the first Close; may be nil
}

// maxIdleLinks is the number of idle links that a client keeps. Few calls run concurrently.
const maxIdleLinks = 4

// ServedBy returns the rank that serves the store. It returns -1 if this process serves the store,
// or if a launcher or PyTorch does.
func (c *linkSet) ServedBy() int { return c.serverRankPlus1 - 1 }

// newClient returns a client without links. It calls dial when it needs one.
func newClient(addr string, dial func(context.Context) (*link, error)) *Client {
	return &Client{linkSet: &linkSet{addr: addr, dial: dial, links: map[*link]bool{}}}
}

// WithPrefix returns a client that adds prefix and a slash to every key. Both clients share their
// links.
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

// Close closes all links, so that calls in progress return ErrClosed.
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

// roundTrip sends the encoded requests in b and calls readReply to read the replies.
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

// acquireLink returns a link for a call, which must pass it to releaseLink.
func (c *linkSet) acquireLink(ctx context.Context) (*link, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}

	l, _, err := c.takeIdle()
	if l != nil || err != nil {
		return l, err
	}

	l, err = c.openLink(ctx)
	mayBeClosing := errors.Is(err, ErrLost) // the server may still serve the links of other calls
	if !mayBeClosing {
		return l, err
	}

	return c.awaitLink(ctx, err)
}

// maxLinkWait limits the wait for a link of another call. It is longer than most calls take.
const maxLinkWait = time.Second

// awaitLink waits until another call has released its link, and returns the link. It returns
// dialErr, the error of openLink, if no other call has a link, or after maxLinkWait.
func (c *linkSet) awaitLink(ctx context.Context, dialErr error) (*link, error) {
	timeout := time.After(maxLinkWait)
	for {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}

		l, released, err := c.takeIdle()
		if l != nil || err != nil {
			return l, err
		}

		if released == nil {
			return nil, dialErr
		}

		select {
		case <-released:
		case <-timeout:
			return nil, dialErr
		case <-ctx.Done():
		}
	}
}

// takeIdle returns an idle link. If all links are in use, it returns a channel that is closed when
// a call releases its link. If there are no links, both results are nil.
func (c *linkSet) takeIdle() (l *link, released <-chan struct{}, err error) {
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

	if c.released == nil {
		c.released = make(chan struct{})
	}

	return nil, c.released, nil
}

// openLink opens a link. Its error is ErrLost if the store cannot be reached.
func (c *linkSet) openLink(ctx context.Context) (*link, error) {
	l, err := c.dial(ctx)
	if err != nil {
		return nil, explainDialError(ctx, err)
	}

	if !c.addLink(l) {
		l.conn.Close()
		return nil, ErrClosed
	}

	return l, nil
}

// explainDialError returns the error of openLink for err, an error of linkSet.dial.
func explainDialError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}

	if !isTransient(err) || errors.Is(err, ErrLost) {
		return err // The server has refused this client, or err is complete.
	}

	return fmt.Errorf("%w: %w", ErrLost, err)
}

// addLink adds a new link. It returns false if the client is closed.
func (c *linkSet) addLink(l *link) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.isClosed {
		c.links[l] = true
	}

	return !c.isClosed
}

// releaseLink ends a call's use of a link, which becomes idle or is closed. err is the error of the
// call. releaseLink returns err, or ErrClosed if Close has interrupted the call.
func (c *linkSet) releaseLink(l *link, err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.released != nil {
		close(c.released)
		c.released = nil
	}

	isReusable := !l.isIncomplete && !c.isClosed
	if isReusable && len(c.idleLinks) < maxIdleLinks {
		c.idleLinks = append(c.idleLinks, l)
		return err
	}

	isInterrupted := l.isIncomplete && c.isClosed
	if isInterrupted {
		err = ErrClosed
	}

	delete(c.links, l)
	l.conn.Close()
	return err
}
