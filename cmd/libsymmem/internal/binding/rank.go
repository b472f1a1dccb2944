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
	session *session
	rt      *symmem.Runtime
	alone   bool
	sites   bool

	world   uint64 // the handle of the group of all ranks
	groups  groupTable
	pools   poolTable
	streams table[uintptr, *symmem.Stream] // by foreign handle
	events  table[uint64, *symmem.Event]
	plugs   table[uintptr, *symmem.AdoptedCommunicator] // by communicator

	warnedCapture sync.Once // the pool grew during a capture
}

// newRank opens the parts of a rank: observers, pool 0 and the handle of the world.
func newRank(s *session, rt *symmem.Runtime, o *Options, alone bool) (*rank, error) {
	r := &rank{session: s, rt: rt, alone: alone, sites: o.callSites()}
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

// observe updates the words when memory or windows change.
func (r *rank) observe() {
	w := r.session.words
	r.rt.Interop().Observe(symmem.Observer{
		SegmentAlloc: func(symmem.SegmentEvent) { w.Pending.Add(1) },
		SegmentFree: func(e symmem.SegmentEvent) {
			w.Windows.Add(1)
			r.session.kept.unmapped(e)
		},
		Register:   func(symmem.WindowEvent) { w.Windows.Add(1) },
		Deregister: func(symmem.WindowEvent) { w.Windows.Add(1) },
	})
}

// close ends the pools, forgets adopted communicators and closes the runtime. With force it waits
// for other ranks for a second at most. The session must not refer to the rank any more.
func (r *rank) close(ended error, force bool) error {
	// Adopted communicators may have been destroyed before, and their windows with them.
	r.groups.forgetAttachments()
	for _, adopted := range r.plugs.removeAll() {
		adopted.Forget()
	}
	err := r.session.interruptible("closing symmem", func(ctx context.Context) error {
		// An interrupted call does not wait for the work of other ranks.
		defer context.AfterFunc(ctx, r.abort)()
		leaving, cancel := context.WithCancel(ctx)
		defer cancel()
		if force {
			cancel()
		}
		err := r.rt.Interop().Close(leaving)
		r.groups.watchers.Wait()
		return err
	})
	return errors.Join(ended, err)
}

// abort fails all groups.
func (r *rank) abort() {
	for _, g := range r.groups.all() {
		g.Abort()
	}
}

// stream returns the Stream of a foreign handle. The first use of a handle adopts it.
func (r *rank) stream(handle uintptr) (*symmem.Stream, error) {
	if s, ok := r.streams.find(handle); ok {
		return s, nil
	}
	return r.streams.findOrCreate(handle, r.rt.Interop().AdoptStream)
}

// memory returns the memory at an address passed by C. It refuses memory of freed buffers,
// including buffers of closed pools.
func (r *rank) memory(address uintptr, bytes int64) (symmem.Memory, error) {
	m, err := r.rt.Interop().Memory(address, bytes)
	if err == nil && m.Pool() == nil && bytes > 0 {
		err = r.session.kept.covers(address, bytes, r.rt.Device().Ordinal < 0)
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
	return r.session.interruptible("registering", func(ctx context.Context) error {
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
