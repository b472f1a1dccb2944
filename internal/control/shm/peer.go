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

// peer is a connection to another rank on this machine, and watches that rank's process.
type peer struct {
	*handoff.Peer
	rank   int
	lost   atomic.Bool
	exited chan struct{}

	watcher sync.WaitGroup
}

// newPeer returns a peer and starts a watcher that increments ends when the peer's process exits.
func newPeer(rank int, h *handoff.Peer, ends *atomic.Uint32) *peer {
	p := &peer{Peer: h, rank: rank, exited: make(chan struct{})}
	if h.PID() != os.Getpid() {
		p.watcher.Go(func() { p.watch(ends) })
	}
	return p
}

func (p *peer) watch(ends *atomic.Uint32) {
	if sys.AwaitEnd(p.Watch()) == nil {
		p.lost.Store(true)
		ends.Add(1)
		close(p.exited)
	}
}

// exitDelay bounds how long the exit of a killed process stays invisible after its connections
// break.
const exitDelay = 200 * time.Millisecond

// hasEnded reports whether the process of a peer with a broken connection has exited. It waits up
// to exitDelay.
func (p *peer) hasEnded() bool {
	select {
	case <-p.exited:
		return true
	case <-time.After(exitDelay):
		return false
	}
}

// onEnd calls a function when the process exits, unless ctx is done first.
func (p *peer) onEnd(ctx context.Context, call func()) {
	if p.lost.Load() {
		call()
		return
	}
	go func() {
		select {
		case <-p.exited:
			call()
		case <-ctx.Done():
		}
	}()
}

func (p *peer) fetch(ctx context.Context, key handoff.Key) (*os.File, error) {
	f, err := p.Fetch(ctx, key)
	if err != nil {
		return nil, asRankLost(p.rank, "fetching shared memory", err)
	}
	return f, nil
}

// asRankLost returns a RankLostError if err means that the other end closed the connection.
func asRankLost(rank int, callText string, err error) error {
	for _, target := range []error{
		io.EOF, io.ErrUnexpectedEOF, syscall.ECONNRESET, syscall.ECONNREFUSED, syscall.EPIPE,
		syscall.ESRCH,
	} {
		if errors.Is(err, target) {
			return &driver.RankLostError{Ranks: []int{rank}, InCall: callText}
		}
	}
	return err
}

func (p *peer) close() error {
	err := p.Peer.Close()
	p.watcher.Wait()
	return err
}
