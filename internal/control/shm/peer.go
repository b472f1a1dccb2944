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

// peer represents another rank of this machine: a connection for descriptors, and a watch on its
// process.
type peer struct {
	*handoff.Peer
	rank int
	// lost is set, and ended closed, once the process has ended. Neither is undone.
	lost  atomic.Bool
	ended chan struct{}

	watcher sync.WaitGroup
}

// newPeer watches the process of a peer. The end of the process increments ends.
func newPeer(rank int, h *handoff.Peer, ends *atomic.Uint32) *peer {
	p := &peer{Peer: h, rank: rank, ended: make(chan struct{})}
	if h.PID() != os.Getpid() {
		p.watcher.Go(func() { p.watch(ends) })
	}
	return p
}

// watch waits for the end of the process or of the watch.
func (p *peer) watch(ends *atomic.Uint32) {
	if sys.AwaitEnd(p.Watch()) == nil {
		p.lost.Store(true)
		ends.Add(1)
		close(p.ended)
	}
}

// exitDelay is the maximum time between the end of a process's connections and the moment when the
// end of the process is visible.
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

// onEnd calls a function once the process has ended, unless the context ends before. If the end is
// already known, it calls the function at once; otherwise it returns at once, and calls the
// function on another goroutine.
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

// fetch returns a file that the peer has exported, or a RankLostError if its process has ended.
func (p *peer) fetch(ctx context.Context, key handoff.Key) (*os.File, error) {
	f, err := p.Fetch(ctx, key)
	if err != nil {
		return nil, asRankLost(p.rank, "fetching shared memory", err)
	}
	return f, nil
}

// asRankLost converts the error of a connection that the other end has closed, as happens when a
// process ends, to a RankLostError.
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
