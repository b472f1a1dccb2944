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

// peer is a connection to another rank on this machine. Over it, this rank fetches files (shared
// memory) that the other rank has exported.
//
// It also watches the process of the other rank, which is lost when its process exits. The kernel
// then ends the connection, usually a moment before this rank notices the exit.
type peer struct {
	*handoff.Peer               // the connection
	rank          int           // world rank of the other rank
	isLost        atomic.Bool   // whether the process has exited
	exited        chan struct{} // closed when the process has exited

	watcher sync.WaitGroup // the goroutine that runs watch
}

// newPeer returns the peer for a connection. It starts to watch the rank's process, unless this is
// the current process, as in tests. When the process exits, it increments exitCount.
func newPeer(rank int, connection *handoff.Peer, exitCount *atomic.Uint32) *peer {
	p := &peer{Peer: connection, rank: rank, exited: make(chan struct{})}
	isInThisProcess := connection.PID() == os.Getpid()
	if !isInThisProcess {
		p.watcher.Go(func() { p.watch(exitCount) })
	}

	return p
}

// watch waits until the rank's process exits, or until the connection is closed.
func (p *peer) watch(exitCount *atomic.Uint32) {
	if err := sys.AwaitEnd(p.Watch()); err != nil {
		return // the connection has been closed
	}

	p.isLost.Store(true)
	exitCount.Add(1)
	close(p.exited)
}

// callOnExit calls f on another goroutine when the process exits, unless ctx is done first. If the
// process has already exited, it calls f on the current goroutine.
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

// exitDelay bounds the time from the end of a connection until this rank notices that the process
// has exited.
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

// fetchFile returns a file that the rank has exported under a key. The error is a
// driver.RankLostError if the connection has ended.
func (p *peer) fetchFile(ctx context.Context, key handoff.Key) (*os.File, error) {
	f, err := p.Fetch(ctx, key)
	if err != nil {
		return nil, toRankLostError(p.rank, "fetching shared memory", err)
	}

	return f, nil
}

// lostErrors are errors of a connection to a process that has closed it or does not exist.
var lostErrors = []error{
	io.EOF, io.ErrUnexpectedEOF, syscall.ECONNRESET, syscall.ECONNREFUSED, syscall.EPIPE,
	syscall.ESRCH,
}

// toRankLostError returns a RankLostError about a world rank if err matches one of lostErrors.
// Otherwise, it returns err.
func toRankLostError(rank int, callText string, err error) error {
	isLost := slices.ContainsFunc(lostErrors, func(lost error) bool { return errors.Is(err, lost) })
	if isLost {
		return &driver.RankLostError{Ranks: []int{rank}, InCall: callText}
	}

	return err
}

// close closes the connection, and waits for the goroutine that watches the process.
func (p *peer) close() error {
	err := p.Peer.Close() // ends watch
	p.watcher.Wait()
	return err
}
