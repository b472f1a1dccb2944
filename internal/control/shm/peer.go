package shm

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"symmem/driver"
	"symmem/internal/handoff"
	"symmem/internal/sys"
)

// peer is another rank on this machine. This rank watches the peer's process, and fetches shared
// memory over a connection to the peer.
type peer struct {
	*handoff.Peer               // the connection
	rank          int           // world rank
	isLost        atomic.Bool   // whether the process has exited
	exited        chan struct{} // closed when isLost is set

	watcher sync.WaitGroup
}

// newPeer begins to watch the process at the other end of a connection. When the process exits,
// exitCount is incremented.
func newPeer(rank int, connection *handoff.Peer, exitCount *atomic.Uint32) *peer {
	p := &peer{Peer: connection, rank: rank, exited: make(chan struct{})}
	isInThisProcess := connection.PID() == os.Getpid() // only in tests
	if !isInThisProcess {
		p.watcher.Go(func() { p.watch(exitCount) })
	}

	return p
}

func (p *peer) watch(exitCount *atomic.Uint32) {
	if err := sys.AwaitEnd(p.Watch()); err != nil {
		return // close has ended the watch
	}

	p.isLost.Store(true)
	exitCount.Add(1)
	close(p.exited)
}

// callOnExit calls f on another goroutine when the process exits, unless ctx is done before. If the
// process has already exited, callOnExit calls f itself.
func (p *peer) callOnExit(ctx context.Context, f func()) {
	if p.isLost.Load() {
		f()
		return
	}

	go func() {
		select {
		case <-p.exited:
			f()
		case <-ctx.Done():
		}
	}()
}

// exitDelay bounds the time from the end of a process's connections until watch notices its exit.
const exitDelay = 200 * time.Millisecond

// hasExited reports whether the process has exited. It waits up to exitDelay for watch to notice.
func (p *peer) hasExited() bool {
	select {
	case <-p.exited:
		return true
	case <-time.After(exitDelay):
		return false
	}
}

// fetchFile returns a file that the rank has exported.
func (p *peer) fetchFile(ctx context.Context, key handoff.Key) (*os.File, error) {
	f, err := p.Fetch(ctx, key)
	if err != nil {
		return nil, toRankLostError(p.rank, "fetching shared memory", err)
	}

	return f, nil
}

// lostErrors are the errors of a connection to a process that has exited.
var lostErrors = []error{
	io.EOF, io.ErrUnexpectedEOF, syscall.ECONNRESET, syscall.ECONNREFUSED, syscall.EPIPE,
	syscall.ESRCH,
}

// toRankLostError replaces lostErrors by a RankLostError about a world rank.
func toRankLostError(rank int, callText string, err error) error {
	isLost := slices.ContainsFunc(lostErrors, func(lost error) bool { return errors.Is(err, lost) })
	if isLost {
		return &driver.RankLostError{Ranks: []int{rank}, InCall: callText}
	}

	return err
}

func (p *peer) close() error {
	err := p.Peer.Close() // ends watch
	p.watcher.Wait()
	return err
}
