package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// linkSet is a Client's pool of links, which are connections to the server. A call takes an idle
// link or opens one. If the server accepts no new links, the call waits for another to release one.
type linkSet struct {
	// These fields do not change.
	addr       string                               // address of the store, for errors
	dial       func(context.Context) (*link, error) // opens a link
	serverRank int                                  // rank that serves the store, or noServerRank

	mu        sync.Mutex     // guards the fields below
	links     map[*link]bool // set of all open links
	idleLinks []*link        // at most maxIdleLinks links that no call uses
	released  chan struct{}  // closed by the next releaseLink; nil if no awaitLink waits
	isClosed  bool
	onClose   func() error // called by the first Close; may be nil
}

const (
	maxIdleLinks = 4
	noServerRank = -1
)

// ServedBy returns the rank that serves the store, or -1 if no other rank serves it.
func (s *linkSet) ServedBy() int { return s.serverRank }

// useLink calls use with a link that no other call uses.
func (s *linkSet) useLink(
	ctx context.Context, use func(context.Context, *link) error,
) error {
	ctx, cancel := withDefaultTimeout(ctx)
	defer cancel()
	l, err := s.acquireLink(ctx)
	if err != nil {
		return err
	}

	err = use(ctx, l)
	return s.releaseLink(l, err)
}

// acquireLink takes an idle link, opens a link, or waits for one. The caller must call releaseLink.
func (s *linkSet) acquireLink(ctx context.Context) (*link, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}

	s.mu.Lock()
	l, err := s.takeIdle()
	s.mu.Unlock()
	if l != nil || err != nil {
		return l, err
	}

	l, err = s.openLink(ctx)
	mayBeClosing := errors.Is(err, ErrLost)
	if mayBeClosing {
		return s.awaitLink(ctx, err)
	}

	return l, err
}

// takeIdle returns an idle link, or nil if there is none. The caller must hold s.mu.
func (s *linkSet) takeIdle() (*link, error) {
	if s.isClosed {
		return nil, ErrClosed
	}

	lastIndex := len(s.idleLinks) - 1
	if lastIndex < 0 {
		return nil, nil
	}

	l := s.idleLinks[lastIndex]
	s.idleLinks = s.idleLinks[:lastIndex]
	return l, nil
}

// openLink opens a link. It returns ErrLost if the store cannot be reached.
func (s *linkSet) openLink(ctx context.Context) (*link, error) {
	l, err := s.dial(ctx)
	if err != nil {
		return nil, explainDialError(ctx, err)
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isClosed {
		l.conn.Close()
		return nil, ErrClosed
	}

	s.links[l] = true
	return l, nil
}

// explainDialError returns the cause of ctx if ctx is done. Otherwise, it adds ErrLost to err,
// unless err is permanent.
func explainDialError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}

	if !isTransient(err) || errors.Is(err, ErrLost) {
		return err
	}

	return fmt.Errorf("%w: %w", ErrLost, err)
}

// maxLinkWait limits the wait for a link. Most calls release theirs sooner.
const maxLinkWait = time.Second

// awaitLink waits until another call releases a link, for at most maxLinkWait. After this time, or
// if there are no links, it returns dialErr, the error of openLink.
func (s *linkSet) awaitLink(ctx context.Context, dialErr error) (*link, error) {
	timeout := time.After(maxLinkWait)
	for {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}

		l, released, err := s.takeIdleOrWatch()
		if l != nil || err != nil {
			return l, err
		}

		hasLinks := released != nil
		if !hasLinks {
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

// takeIdleOrWatch returns an idle link. If all links are in use, it instead returns a channel that
// is closed when a call releases a link. If there are no links, it returns neither.
func (s *linkSet) takeIdleOrWatch() (l *link, released <-chan struct{}, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l, err = s.takeIdle()
	if l != nil || err != nil || len(s.links) == 0 {
		return l, nil, err
	}

	if s.released == nil {
		s.released = make(chan struct{})
	}

	return nil, s.released, nil
}

// releaseLink makes a link idle, or closes it if no other call can use it. It returns callErr, the
// error of the call that used the link, or ErrClosed if Close has interrupted that call.
func (s *linkSet) releaseLink(l *link, callErr error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.released != nil {
		close(s.released)
		s.released = nil
	}

	canReuse := !l.hasPendingReply && !s.isClosed
	if canReuse && len(s.idleLinks) < maxIdleLinks {
		s.idleLinks = append(s.idleLinks, l)
		return callErr
	}

	delete(s.links, l)
	l.conn.Close()
	wasInterrupted := l.hasPendingReply && s.isClosed
	if wasInterrupted {
		return ErrClosed
	}

	return callErr
}

// addIdle adds the first link of a new linkSet.
func (s *linkSet) addIdle(l *link) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.links[l] = true
	s.idleLinks = append(s.idleLinks, l)
}

// Close closes all links, so that calls in progress return ErrClosed.
func (s *linkSet) Close() error {
	s.mu.Lock()
	var errs []error
	for l := range s.links {
		closeErr := l.conn.Close()
		errs = append(errs, closeErr)
	}

	clear(s.links)
	s.idleLinks = nil
	s.isClosed = true
	onClose := s.onClose
	s.onClose = nil
	s.mu.Unlock()
	if onClose != nil {
		closeErr := onClose()
		errs = append(errs, closeErr)
	}

	return errors.Join(errs...)
}
