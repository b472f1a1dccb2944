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
	"symmem/internal/spin"
	"symmem/internal/sys"
)

// ranks gives access to the ranks of a group, which are numbered by group rank. Each rank publishes
// its state in its block of shared memory.
type ranks struct {
	ownBlock    *block
	otherBlocks []*block // blocks without ownBlock, in the same order
	blocks      []*block // by group rank
	peers       []*peer  // by group rank; the entry of this rank is nil
	cfg         *driver.GroupConfig
}

func (r *ranks) Size() int { return len(r.blocks) }

// OtherRanks lists all ranks except this one.
func (r *ranks) OtherRanks() []int {
	var others []int
	for rank := range r.blocks {
		if rank != r.cfg.Rank {
			others = append(others, rank)
		}
	}

	return others
}

func (r *ranks) HasLeft(rank int) bool {
	return spin.LoadAcquire64(&r.blocks[rank].status.closed) != 0
}

// PresentRanks lists the other ranks that have not left the group.
func (r *ranks) PresentRanks() []int { return slices.DeleteFunc(r.OtherRanks(), r.HasLeft) }

// LastTicketOf returns the last ticket that a rank has submitted.
func (r *ranks) LastTicketOf(rank int) uint64 {
	return spin.LoadAcquire64(&r.blocks[rank].status.submitted)
}

// peerFailed reports whether another rank has failed.
func (r *ranks) peerFailed() bool {
	for _, b := range r.otherBlocks {
		if atomic.LoadUint32(&b.wakeup.failed) != 0 {
			return true
		}
	}

	return false
}

// lostPeers lists the ranks whose processes exited before they left the group.
func (r *ranks) lostPeers() []int {
	// HasLeft is called last, because a rank may leave and exit between the two checks.
	exited := r.selectExited(r.OtherRanks())
	return slices.DeleteFunc(exited, r.HasLeft)
}

// selectExited returns the candidates whose processes have exited.
func (r *ranks) selectExited(candidates []int) []int {
	var exited []int
	for _, rank := range candidates {
		p := r.peers[rank]
		if p != nil && p.isExited.Load() {
			exited = append(exited, rank)
		}
	}

	return exited
}

// IsAsleep reports whether a rank has sleeping threads.
func (r *ranks) IsAsleep(rank int) bool {
	return atomic.LoadInt32(&r.blocks[rank].wakeup.sleeping) != 0
}

// Wake wakes a rank's sleeping threads.
func (r *ranks) Wake(rank int) {
	if r.IsAsleep(rank) {
		r.blocks[rank].wakeup.wake()
	}
}

// wakeSleepers wakes the other ranks' sleeping threads after a post. Without a memory fence, it may
// miss a thread that is about to sleep. That thread wakes after a short timeout.
func (r *ranks) wakeSleepers() {
	for _, b := range r.otherBlocks {
		if atomic.LoadInt32(&b.wakeup.sleeping) != 0 {
			b.wakeup.wake()
		}
	}
}

// wakeAll signals a failure or departure of this rank to all ranks. Ranks that are awake notice the
// change of wakeup.word.
func (r *ranks) wakeAll() {
	for _, b := range r.blocks {
		b.wakeup.wake()
	}
}

// peer is another rank's process, which this rank watches.
type peer struct {
	*handoff.Peer     // connection to the process
	rank          int // world rank
	isExited      atomic.Bool
	exited        chan struct{} // closed after isExited is set

	watcher sync.WaitGroup
}

// newPeer begins to watch a connected process, and increments exitCount when the process exits.
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
		return // close was called
	}

	p.isExited.Store(true)
	exitCount.Add(1)
	close(p.exited)
}

// callOnExit calls f when the process exits before ctx is done. If the process has already exited,
// callOnExit calls f before it returns.
func (p *peer) callOnExit(ctx context.Context, f func()) {
	if p.isExited.Load() {
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

// exitDelay is the time that watch may take to notice an exit after the connection has failed.
const exitDelay = 200 * time.Millisecond

// hasExited reports whether the process has exited. It waits for an exit up to exitDelay.
func (p *peer) hasExited() bool {
	select {
	case <-p.exited:
		return true
	case <-time.After(exitDelay):
		return false
	}
}

// fetchFile returns a file of shared memory that the rank has exported.
func (p *peer) fetchFile(ctx context.Context, key handoff.Key) (*os.File, error) {
	f, err := p.Fetch(ctx, key)
	if err != nil {
		return nil, toRankLostError(p.rank, "fetching shared memory", err)
	}

	return f, nil
}

// toRankLostError replaces exitErrors by a RankLostError about a world rank.
func toRankLostError(rank int, callText string, err error) error {
	isExit := slices.ContainsFunc(exitErrors, func(e error) bool { return errors.Is(err, e) })
	if isExit {
		return &driver.RankLostError{Ranks: []int{rank}, InCall: callText}
	}

	return err
}

// exitErrors are the errors of requests to a process that has exited.
var exitErrors = []error{
	io.EOF, io.ErrUnexpectedEOF, syscall.ECONNRESET, syscall.ECONNREFUSED, syscall.EPIPE,
	syscall.ESRCH,
}

func (p *peer) close() error {
	err := p.Peer.Close() // ends watch
	p.watcher.Wait()
	return err
}
