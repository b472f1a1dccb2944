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

// peer is a connection to another rank on this machine, and watches its process.
type peer struct {
	*handoff.Peer
	rank   int
	isLost atomic.Bool
	exited chan struct{} // closed when the process has exited

	watcher sync.WaitGroup
}

// newPeer starts a goroutine that increments exitCount when the peer's process exits.
func newPeer(rank int, h *handoff.Peer, exitCount *atomic.Uint32) *peer {
	p := &peer{Peer: h, rank: rank, exited: make(chan struct{})}
	if h.PID() != os.Getpid() {
		p.watcher.Go(func() { p.watch(exitCount) })
	}
	return p
}

func (p *peer) watch(exitCount *atomic.Uint32) {
	if sys.AwaitEnd(p.Watch()) == nil {
		p.isLost.Store(true)
		exitCount.Add(1)
		close(p.exited)
	}
}

// exitDelay bounds the time from the end of a killed process's connections until its exit is
// noticed.
const exitDelay = 200 * time.Millisecond

// hasExited waits up to exitDelay for the process of a peer with a broken connection to exit.
func (p *peer) hasExited() bool {
	select {
	case <-p.exited:
		return true
	case <-time.After(exitDelay):
		return false
	}
}

// callOnExit calls a function when the process exits, unless ctx is done first.
func (p *peer) callOnExit(ctx context.Context, call func()) {
	if p.isLost.Load() {
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

func (p *peer) fetchFile(ctx context.Context, key handoff.Key) (*os.File, error) {
	f, err := p.Fetch(ctx, key)
	if err != nil {
		return nil, toRankLostError(p.rank, "fetching shared memory", err)
	}
	return f, nil
}

// toRankLostError returns a RankLostError if err means a closed connection.
func toRankLostError(rank int, callText string, err error) error {
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
