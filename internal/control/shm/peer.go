package shm

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"symmem/driver"
	"symmem/internal/handoff"
	"symmem/internal/sys"
)

// peer is another rank of this machine: a connection for descriptors, and a watch on its life.
type peer struct {
	*handoff.Peer
	rank int
	// lost is set when the process has ended, and ended is closed then. It never goes back.
	lost  atomic.Bool
	ended chan struct{}

	watcher sync.WaitGroup
}

// newPeer watches over the life of a peer, and counts its end in ends.
func newPeer(rank int, h *handoff.Peer, ends *atomic.Uint32) *peer {
	p := &peer{Peer: h, rank: rank, ended: make(chan struct{})}
	if h.PID() != os.Getpid() {
		p.watcher.Go(func() { p.watch(ends) })
	}
	return p
}

// watch waits for the end of the process, or of the watch.
func (p *peer) watch(ends *atomic.Uint32) {
	if sys.AwaitEnd(p.Watch()) == nil {
		p.lost.Store(true)
		ends.Add(1)
		close(p.ended)
	}
}

// exitDelay is how long after its connections the end of a process may be seen at the latest.
const exitDelay = 200 * time.Millisecond

// hasEnded reports whether the process behind a connection that broke has ended. A process that is
// killed loses its connections first.
func (p *peer) hasEnded() bool {
	select {
	case <-p.ended:
		return true
	case <-time.After(exitDelay):
		return false
	}
}

// onEnd calls a function once the process has ended, unless the context ends before. It returns at
// once; the function is called on a goroutine of its own, but for an end that is known already.
func (p *peer) onEnd(ctx context.Context, call func()) {
	if p.lost.Load() {
		call()
		return
	}
	go func() {
		select {
		case <-p.ended:
			call()
		case <-ctx.Done():
		}
	}()
}

// fetch is Fetch with a RankLostError where the rank is gone.
func (p *peer) fetch(ctx context.Context, key handoff.Key) (*os.File, error) {
	f, err := p.Fetch(ctx, key)
	if err != nil {
		return nil, asRankLost(p.rank, "fetching shared memory", err)
	}
	return f, nil
}

// asRankLost turns the error of a connection which the other end has closed, as the end of a
// process does, into a RankLostError.
func asRankLost(rank int, doing string, err error) error {
	for _, sign := range []error{
		io.EOF, io.ErrUnexpectedEOF, syscall.ECONNRESET, syscall.ECONNREFUSED, syscall.EPIPE,
		syscall.ESRCH,
	} {
		if errors.Is(err, sign) {
			return &driver.RankLostError{Ranks: []int{rank}, Doing: doing}
		}
	}
	return err
}

func (p *peer) close() error {
	err := p.Peer.Close()
	p.watcher.Wait()
	return err
}
