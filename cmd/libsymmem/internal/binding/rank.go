package binding

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"symmem"
)

// rank holds this process's state in one open world.
type rank struct {
	session   *session
	rt        *symmem.Runtime
	alone     bool
	host      bool // the rank uses the host backend
	callSites bool // call sites are recorded

	world       uint64 // handle of the group of all ranks
	groups      groupTable
	streams     table[uintptr, *symmem.Stream]              // by foreign handle
	sites       table[uint32, uint32]                       // site number in rt, by that in session
	pluginComms table[uintptr, *symmem.AdoptedCommunicator] // by address

	warnCapture sync.Once // prints a warning if the pool grows during a capture
}

// newRank observes rt and opens a handle for rt's world. For the main world, it also opens pool 0.
func newRank(s *session, rt *symmem.Runtime, o *Options, kind rankKind) (*rank, error) {
	r := &rank{
		session: s, rt: rt, alone: kind == aloneRank, host: rt.Device().Ordinal < 0,
		callSites: o.callSites(),
	}
	r.groups.init(r)
	r.observe()
	if kind != worldRank {
		options, err := o.Pool.pool(rt.World())
		if err == nil {
			err = s.poolTable.addMain(r, options)
		}
		if err != nil {
			return nil, err
		}
	}
	r.world = r.groups.add(rt.World(), "world")
	return r, nil
}

// observe registers an observer that updates the Counters when memory or windows change.
func (r *rank) observe() {
	counters := r.session.counters
	r.rt.Interop().Observe(symmem.Observer{
		SegmentAlloc: func(symmem.SegmentEvent) { counters.Pending.Add(1) },
		SegmentFree: func(e symmem.SegmentEvent) {
			counters.Windows.Add(1)
			r.session.kept.recordUnmapped(e)
		},
		Register:   func(symmem.WindowEvent) { counters.Windows.Add(1) },
		Deregister: func(symmem.WindowEvent) { counters.Windows.Add(1) },
	})
}

// close forgets adopted communicators and closes the runtime. If force is set, it waits for other
// ranks for at most a second. The returned error includes poolErr. The caller must have removed the
// rank from the session.
func (r *rank) close(poolErr error, force bool) error {
	// Do not deregister memory: the other libraries may have destroyed their communicators already.
	r.groups.forgetAttachments()
	for _, adopted := range r.pluginComms.removeAll() {
		adopted.Forget()
	}
	err := r.session.runInterruptible("closing symmem", func(ctx context.Context) error {
		// An interrupted close does not wait for the work of other ranks.
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

func (r *rank) abort() {
	for _, g := range r.groups.all() {
		g.Abort()
	}
}

// stream returns the Stream for a foreign handle, and adopts the stream on the first call.
func (r *rank) stream(handle uintptr) (*symmem.Stream, error) {
	s, ok := r.streams.find(handle)
	if !ok {
		var err error
		s, err = r.streams.findOrCreate(handle, r.rt.Interop().AdoptStream)
		if err != nil {
			return nil, err
		}
	}
	if len(r.session.ranks.all()) > 1 && r.host {
		last := r.session.lastUses.findOrAdd(handle, &lastUse{})
		return s, last.waitForOthers(streamUse{r, s}, handle)
	}
	return s, nil
}

// at returns an Interop that records a call site for its calls.
func (r *rank) at(site uint32) symmem.Interop {
	i := r.rt.Interop()
	if site == 0 {
		return i
	}
	number, known := r.sites.find(site)
	if !known {
		text := r.session.sites.text(site)
		if text == "" {
			return i
		}
		number = i.Site(text)
		r.sites.add(site, number)
	}
	return i.At(number)
}

// memory returns the memory at an address passed by C. It returns an error for freed memory.
func (r *rank) memory(address uintptr, bytes int64) (symmem.Memory, error) {
	m, err := r.rt.Interop().Memory(address, bytes)
	if err == nil && m.Pool() == nil && bytes > 0 {
		err = r.checkOtherWorlds(address, bytes)
	}
	return m, err
}

// checkOtherWorlds returns an error for freed memory of other worlds, open or closed.
func (r *rank) checkOtherWorlds(address uintptr, bytes int64) error {
	for _, other := range r.session.ranks.all() {
		if other == r {
			continue
		}
		if _, err := other.rt.Interop().Memory(address, bytes); err != nil {
			return err
		}
	}
	return r.session.kept.checkFreed(address, bytes, r.host)
}

func (r *rank) register(g *group, p *pool, stream uintptr) error {
	if err := g.Cause(context.Background()); err != nil {
		return err
	}
	if err := p.flush(); err != nil {
		return err
	}
	if r.rt.Interop().IsCapturing(stream) {
		if !r.rt.Interop().Pending(p.Pool, g.Group) {
			return nil
		}
		return fmt.Errorf("registering with group %s: %w", g.ID(), symmem.ErrCapturing)
	}
	return r.session.runInterruptible("registering", func(ctx context.Context) error {
		if err := p.Register(ctx, g.Group); err != nil {
			return err
		}
		for _, a := range r.groups.attachmentsOf(g) {
			if err := a.adopted.Register(ctx, p.Pool); err != nil {
				return err
			}
		}
		return nil
	})
}
