package host

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"symmem/internal/handoff"
	"symmem/internal/sys"
)

// peer is another rank of this machine: a connection for descriptors, and a watch on its life.
type peer struct {
	*handoff.Peer
	rank int
	// lost is set when the process has ended. It never goes back.
	lost atomic.Bool

	stop    atomic.Bool
	watcher sync.WaitGroup
}

// watchSlice is how often a watcher looks up from its process to see whether it should stop.
const watchSlice = 50 * time.Millisecond

func newPeer(rank int, h *handoff.Peer) *peer {
	p := &peer{Peer: h, rank: rank}
	if h.PID() != os.Getpid() {
		p.watcher.Go(p.watch)
	}
	return p
}

// watch waits for the end of the process.
func (p *peer) watch() {
	files := []*os.File{p.Watch()}
	for !p.stop.Load() {
		ended, err := sys.WaitReadable(files, watchSlice)
		if err != nil || len(ended) > 0 {
			p.lost.Store(err == nil)
			return
		}
	}
}

func (p *peer) close() error {
	p.stop.Store(true)
	p.watcher.Wait()
	return errors.Join(p.Peer.Close())
}
