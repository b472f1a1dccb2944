package binding

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"symmem"
)

// rank holds the state of a Library while it is open.
type rank struct {
	session   *session
	rt        *symmem.Runtime
	alone     bool
	callSites bool // call sites are recorded

	world       uint64 // handle of the group of all ranks
	groups      groupTable
	pools       poolTable
	streams     table[uintptr, *symmem.Stream] // by foreign handle
	events      table[uint64, *symmem.Event]
	pluginComms table[uintptr, *symmem.AdoptedCommunicator] // by address

	warnCapture sync.Once // prints the warning that the pool grew during a capture
}

// newRank returns a rank with an observer, pool 0 and a handle for the world.
func newRank(s *session, rt *symmem.Runtime, o *Options, alone bool) (*rank, error) {
	r := &rank{session: s, rt: rt, alone: alone, callSites: o.callSites()}
	r.groups.init(s)
	r.pools.rt = rt
	r.observe()
	options, err := o.Pool.pool(rt.World())
	if err != nil {
		return nil, err
	}
	if _, err := r.pools.add(options); err != nil {
		return nil, err
	}
	r.world = r.groups.add(rt.World(), "world")
	return r, nil
}

// observe registers an observer. The observer updates the words when memory or windows change.
func (r *rank) observe() {
	w := r.session.words
	r.rt.Interop().Observe(symmem.Observer{
		SegmentAlloc: func(symmem.SegmentEvent) { w.Pending.Add(1) },
		SegmentFree: func(e symmem.SegmentEvent) {
			w.Windows.Add(1)
			r.session.kept.recordUnmapped(e)
		},
		Register:   func(symmem.WindowEvent) { w.Windows.Add(1) },
		Deregister: func(symmem.WindowEvent) { w.Windows.Add(1) },
	})
}

// close forgets adopted communicators and closes the runtime. If force is set, it waits for other
// ranks for at most a second. The result includes poolErr, the error of closing the pools. The
// session must no longer refer to the rank.
func (r *rank) close(poolErr error, force bool) error {
	// The owners may already have destroyed their communicators, and the windows with them.
	r.groups.forgetAttachments()
	for _, adopted := range r.pluginComms.removeAll() {
		adopted.Forget()
	}
	err := r.session.runInterruptible("closing symmem", func(ctx context.Context) error {
		// An interrupted call does not wait for the work of other ranks.
		defer context.AfterFunc(ctx, r.abort)()
		closeCtx, cancel := context.WithCancel(ctx)
		defer cancel()
		if force {
			cancel()
		}
		err := r.rt.Interop().Close(closeCtx)
		r.groups.watchers.Wait()
		return err
	})
	return errors.Join(poolErr, err)
}

// abort fails all groups.
func (r *rank) abort() {
	for _, g := range r.groups.all() {
		g.Abort()
	}
}

// stream returns the Stream for a foreign handle. The first call for a handle adopts the stream.
func (r *rank) stream(handle uintptr) (*symmem.Stream, error) {
	if s, ok := r.streams.find(handle); ok {
		return s, nil
	}
	return r.streams.findOrCreate(handle, r.rt.Interop().AdoptStream)
}

// memory returns the memory at an address passed by C. It returns an error for memory of freed
// buffers, including buffers of closed pools.
func (r *rank) memory(address uintptr, bytes int64) (symmem.Memory, error) {
	m, err := r.rt.Interop().Memory(address, bytes)
	if err == nil && m.Pool() == nil && bytes > 0 {
		err = r.session.kept.checkFreed(address, bytes, r.rt.Device().Ordinal < 0)
	}
	return m, err
}

// register registers new memory of a pool with a group and its attached communicators.
func (r *rank) register(g *group, p *pool, stream uintptr) error {
	if err := g.Cause(context.Background()); err != nil {
		return err
	}
	if err := p.flush(); err != nil {
		return err
	}
	if r.rt.Interop().Captured(stream) {
		if !r.rt.Interop().Pending(p.Pool, g.Group) {
			return nil
		}
		return fmt.Errorf("registering with group %s: %w", g.ID(), symmem.ErrCapturing)
	}
	return r.session.runInterruptible("registering", func(ctx context.Context) error {
		if err := p.Register(ctx, g.Group); err != nil {
			return err
		}
		for _, a := range r.groups.attached(g) {
			if err := a.adopted.Register(ctx, p.Pool); err != nil {
				return err
			}
		}
		return nil
	})
}
