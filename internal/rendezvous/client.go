package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// A Client has a pool of links, its connections to the server of a store. Each call, such as Get,
// takes an idle link or opens one. A closing server accepts no new links but serves existing ones,
// so a call that cannot open a link waits until another call releases one.

// Client accesses a store of keys and values that all ranks of a job share. It is safe for
// concurrent use.
//
// When a call returns without an error, all ranks can see its effect. A call whose context was
// canceled may or may not have taken effect. A call returns ErrTooLarge for a key of more than
// 8 KiB, a value of more than 8 MiB, or more than 128 Ki keys.
type Client struct {
	*linkSet
	keyPrefix string // added to each key
}

// linkSet is a pool of links. WithPrefix returns clients with the same linkSet.
type linkSet struct {
	// These fields do not change.
	addr       string                               // address of the store, for errors
	dial       func(context.Context) (*link, error) // opens a link
	serverRank int                                  // result of ServedBy

	mu        sync.Mutex     // guards the fields below
	links     map[*link]bool // set of all open links
	idleLinks []*link        // at most maxIdleLinks links that no call uses
	released  chan struct{}  // closed when a call releases its link; nil if no call waits
	isClosed  bool
	onClose   func() error // called by the first Close; may be nil
}

const maxIdleLinks = 4

// ServedBy returns the rank that serves the store. It returns -1 if this process serves the store,
// or if a launcher or PyTorch does.
func (c *linkSet) ServedBy() int { return c.serverRank }

const noServerRank = -1

func newClient(addr string, dial func(context.Context) (*link, error)) *Client {
	return &Client{linkSet: &linkSet{
		addr: addr, dial: dial, serverRank: noServerRank, links: map[*link]bool{},
	}}
}

// WithPrefix returns a client that shares c's links and adds prefix and a slash to every key.
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

// roundTrip takes a link from the pool, sends encoded requests, and reads the replies with
// readReply.
func (c *linkSet) roundTrip(
	ctx context.Context, requests []byte, readReply func(*decoder) error,
) error {
	ctx, cancel := withDefaultTimeout(ctx)
	defer cancel()
	l, err := c.acquireLink(ctx)
	if err != nil {
		return err
	}

	err = l.exchange(ctx, requests, readReply)
	return c.releaseLink(l, err)
}

// acquireLink takes, opens or awaits a link. The caller must call releaseLink.
func (c *linkSet) acquireLink(ctx context.Context) (*link, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}

	l, _, err := c.takeIdle()
	if l != nil || err != nil {
		return l, err
	}

	l, err = c.openLink(ctx)
	if errors.Is(err, ErrLost) {
		return c.awaitLink(ctx, err)
	}

	return l, err
}

// maxLinkWait limits the wait for a link. Most calls release theirs sooner.
const maxLinkWait = time.Second

// awaitLink waits until another call releases a link. It returns dialErr, the error of openLink, if
// there are no links or after maxLinkWait.
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

// takeIdle returns an idle link. If all links are in use, it instead returns a channel that is
// closed when a call releases a link. If there are no links, it returns neither.
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

// openLink opens a link. It returns ErrLost if the store cannot be reached.
func (c *linkSet) openLink(ctx context.Context) (*link, error) {
	l, err := c.dial(ctx)
	if err != nil {
		return nil, explainDialError(ctx, err)
	}

	isAdded := c.addLink(l)
	if !isAdded {
		l.conn.Close()
		return nil, ErrClosed
	}

	return l, nil
}

// explainDialError returns the cause of ctx if ctx is done. Otherwise, it adds ErrLost to a
// transient error of dial.
func explainDialError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}

	if !isTransient(err) || errors.Is(err, ErrLost) {
		return err
	}

	return fmt.Errorf("%w: %w", ErrLost, err)
}

// addLink adds a new link, unless the client is closed.
func (c *linkSet) addLink(l *link) (isAdded bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isClosed {
		return false
	}

	c.links[l] = true
	return true
}

// releaseLink makes a link idle or closes it. It returns callErr, the error of the call that used
// the link, or ErrClosed if Close has interrupted that call.
func (c *linkSet) releaseLink(l *link, callErr error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.released != nil {
		close(c.released)
		c.released = nil
	}

	canReuse := !l.isIncomplete && !c.isClosed
	if canReuse && len(c.idleLinks) < maxIdleLinks {
		c.idleLinks = append(c.idleLinks, l)
		return callErr
	}

	delete(c.links, l)
	l.conn.Close()
	wasInterrupted := l.isIncomplete && c.isClosed
	if wasInterrupted {
		return ErrClosed
	}

	return callErr
}
