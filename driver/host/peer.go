package host

import (
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

// endSeen is how long after its connections the end of a process may be seen at the latest.
const endSeen = 200 * time.Millisecond

// ends tells whether the process behind a connection that broke has ended. A process that is killed
// loses its connections first.
func (p *peer) ends() bool {
	select {
	case <-p.ended:
		return true
	case <-time.After(endSeen):
		return false
	}
}

func (p *peer) close() error {
	err := p.Peer.Close()
	p.watcher.Wait()
	return err
}
