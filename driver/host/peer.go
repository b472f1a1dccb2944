package host

import (
	"os"
	"sync"
	"sync/atomic"

	"symmem/internal/handoff"
	"symmem/internal/sys"
)

// peer is another rank of this machine: a connection for descriptors, and a watch on its life.
type peer struct {
	*handoff.Peer
	rank int
	// lost is set when the process has ended. It never goes back.
	lost atomic.Bool

	watcher sync.WaitGroup
}

func newPeer(rank int, h *handoff.Peer) *peer {
	p := &peer{Peer: h, rank: rank}
	if h.PID() != os.Getpid() {
		p.watcher.Go(p.watch)
	}
	return p
}

// watch waits for the end of the process, or of the watch.
func (p *peer) watch() { p.lost.Store(sys.AwaitEnd(p.Watch()) == nil) }

func (p *peer) close() error {
	err := p.Peer.Close()
	p.watcher.Wait()
	return err
}
