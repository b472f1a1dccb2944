package nccl

import (
	"context"
	"errors"
	"fmt"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/driver/nccl/internal/p2p"
	"symmem/driver/nccl/internal/stream"
)

// owner is a communicator as its streams and its messages know it.
type owner struct{ *communicator }

var (
	_ stream.Group = (*owner)(nil)
	_ p2p.Owner    = (*owner)(nil)
)

// Await waits for a stream whose last collective is the given one.
func (c *owner) Await(
	ctx context.Context, s *stream.Stream, ticket uint64, operation driver.Operation,
) error {
	w := c.waitFor(ticket, operation)
	w.Done = s.Idle
	err := c.plane.Await(ctx, w)
	if err != nil && c.plane.Cause() != nil {
		c.end()
	}
	return err
}

// KernelsEnded is closed when the communicator's kernels have ended, or are given up.
func (c *owner) KernelsEnded() <-chan struct{} { return c.kernelsEnded }

// Reported fails the communicator if a kernel has reported a fault.
func (c *owner) Reported() error {
	err := c.checkKernels()
	if err != nil {
		c.end()
	}
	return err
}

// ReplayFault is why a communicator has failed that another library has captured calls of.
func (c *owner) ReplayFault() error {
	if !c.replayed.Load() {
		return nil
	}
	_ = c.checkKernels()
	if cause := c.plane.Cause(); !errors.Is(cause, driver.ErrClosed) {
		return cause
	}
	return nil
}

// RecordEvent records the event of the group's latest launch after the work queued on a stream, if
// the latest is there.
func (c *owner) RecordEvent(s *stream.Stream, forget bool) error {
	t := &c.direct.order
	if t.Latest() != s {
		return nil // nor will it be, while its lock is held
	}
	if forget {
		t.ForgetLatest(s)
		return nil
	}
	return c.device.gpu.Do(func() error { return t.RecordLatest(s) })
}

// EndedEarly fails the group of a collective that is done and cannot have gone well: it needs data
// of all ranks, and some rank has yet to launch it. On a GPU that ranks share under CUDA's MPS a
// kernel of NCCL's may end when the process of another rank does. It waits for the cause, but not
// for long.
func (c *owner) EndedEarly(ticket uint64) error {
	p := c.history.of(ticket)
	shown := c.direct.announcements
	if p == nil || !needsAll(p) || shown == nil || shown.Submitted(ticket) {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), causeTime)
	defer cancel()
	_ = gpu.Poll(ctx, func() bool {
		c.CheckPeers()
		return c.plane.Cause() != nil
	})
	if c.plane.Cause() == nil {
		_ = c.plane.Fail(fmt.Errorf("collective %d of group %s has ended before all ranks have "+
			"launched it", ticket, c.cfg.Name()))
	}
	c.end()
	return c.plane.Cause()
}

// needsAll reports whether no rank can end a collective before all have begun it.
func needsAll(p *driver.Call) bool {
	switch p.Operation {
	case driver.Barrier:
		return true
	case driver.AllReduce, driver.AllReduceRMSNorm, driver.AllGather, driver.ReduceScatter,
		driver.AllToAll:
		return p.Count > 0 || p.Path == driver.PathDirect // NCCL is not asked to move nothing
	default:
		return false
	}
}

// causeTime is how long EndedEarly waits: the end of a process is known sooner.
const causeTime = 3 * time.Second

// NoteMessage remembers a message that is about to be queued. s.Mu and c.mu are held.
func (c *owner) NoteMessage(s *stream.Stream, call *driver.Call) {
	s.Note(c.group, c.history.message(call), call.Operation)
}

// FailUnqueued fails the communicator over a message that could not be queued.
func (c *owner) FailUnqueued(call *driver.Call, err error) error {
	return c.failUnqueued(call, err)
}

// AfterPeerFault fails the communicator after a peer has failed.
func (c *owner) AfterPeerFault(call *driver.Call) error { return c.afterPeerFault(call) }
