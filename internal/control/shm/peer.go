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

// peer is a connection to another rank on this machine. It watches the process of the rank.
type peer struct {
	*handoff.Peer
	rank   int           // world rank
	isLost atomic.Bool   // whether the process has exited
	exited chan struct{} // closed when the process has exited

	watcher sync.WaitGroup
}

// newPeer returns the peer for a connection h. Unless the rank is in this process, it starts a
// goroutine that increments exitCount when the rank's process exits.
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

// exitDelay bounds the time from the end of a killed process's connections until this rank notices
// that the process has exited.
const exitDelay = 200 * time.Millisecond

// hasExited reports whether the process of a peer with a broken connection has exited. It waits
// for the exit for up to exitDelay.
func (p *peer) hasExited() bool {
	select {
	case <-p.exited:
		return true
	case <-time.After(exitDelay):
		return false
	}
}

// callOnExit calls a function when the process exits, unless ctx is done first. If the process has
// already exited, the call has ended when callOnExit returns.
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

// toRankLostError returns a RankLostError about a world rank if err means that the rank's process
// has closed the connection or does not exist. Otherwise, it returns err.
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
