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

// peer is another rank on this machine. This rank fetches shared memory over the connection to it,
// and watches its process.
type peer struct {
	*handoff.Peer               // the connection
	rank          int           // world rank
	isLost        atomic.Bool   // whether the process has exited
	exited        chan struct{} // closed when isLost is set

	watcher sync.WaitGroup
}

// newPeer watches the process at the other end of a connection, and increments exitCount when the
// process exits.
func newPeer(rank int, connection *handoff.Peer, exitCount *atomic.Uint32) *peer {
	p := &peer{Peer: connection, rank: rank, exited: make(chan struct{})}
	isInThisProcess := connection.PID() == os.Getpid()
	if !isInThisProcess { // as in tests
		p.watcher.Go(func() { p.watch(exitCount) })
	}

	return p
}

func (p *peer) watch(exitCount *atomic.Uint32) {
	if err := sys.AwaitEnd(p.Watch()); err != nil {
		return // close has been called
	}

	p.isLost.Store(true)
	exitCount.Add(1)
	close(p.exited)
}

// callOnExit calls f when the process exits, or at once if it has, unless ctx is done first.
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

// exitDelay bounds the time until watch notices the exit of a process after its connections break.
const exitDelay = 200 * time.Millisecond

// hasExited reports within exitDelay whether an exit has broken the connection.
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

// lostErrors are errors of a connection whose other end is closed or does not exist.
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
