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
	session       *session
	rt            *symmem.Runtime
	isAlone       bool
	isHostBackend bool
	hasCallSites  bool

	worldHandle uint64 // handle of the group of all ranks
	groupTable  groupTable
	streams     table[uintptr, *symmem.Stream]              // by the other library's handle
	sites       table[uint32, uint32]                       // rt's number of a site by session's
	pluginComms table[uintptr, *symmem.AdoptedCommunicator] // by address

	// padStream returns the stream that copies checked pads, creating it on the first call.
	padStream func() (*symmem.Stream, error)

	captureWarning sync.Once // prints a warning if the pool grows during a capture
}

func newRank(s *session, rt *symmem.Runtime, o *Options, kind rankKind) (*rank, error) {
	r := &rank{
		session: s, rt: rt, isAlone: kind == aloneRank, isHostBackend: rt.Device().Ordinal < 0,
		hasCallSites: o.shouldRecordCallSites(), padStream: sync.OnceValues(rt.NewStream),
	}
	r.groupTable.init(r)
	r.installObserver()
	if kind != otherRank {
		options, err := o.Pool.withDomain(rt.World())
		if err == nil {
			err = s.poolTable.openMainPool(r, options)
		}
		if err != nil {
			return nil, err
		}
	}
	r.worldHandle = r.groupTable.add(rt.World(), "world")
	return r, nil
}

func (r *rank) installObserver() {
	counters := r.session.counters
	r.rt.Interop().Observe(symmem.Observer{
		SegmentAlloc: func(symmem.SegmentEvent) { counters.Pending.Add(1) },
		SegmentFree: func(e symmem.SegmentEvent) {
			counters.Windows.Add(1)
			r.session.closedRankBuffers.recordUnmapped(e)
		},
		Register:   func(symmem.WindowEvent) { counters.Windows.Add(1) },
		Deregister: func(symmem.WindowEvent) { counters.Windows.Add(1) },
	})
}

// close closes the rank's Runtime, and returns its error joined with poolErr. If force is set, it
// waits at most a second for other ranks. The caller must have removed the rank from the session.
func (r *rank) close(poolErr error, force bool) error {
	// Do not deregister memory: the other libraries may have destroyed their communicators already.
	r.groupTable.forgetAttachments()
	for _, communicator := range r.pluginComms.removeAll() {
		communicator.Forget()
	}
	err := r.session.runInterruptible("closing symmem", func(ctx context.Context) error {
		// An interrupted close does not wait for the work of other ranks.
		defer context.AfterFunc(ctx, r.abortGroups)()
		closeCtx, cancel := context.WithCancel(ctx)
		defer cancel()
		if force {
			cancel()
		}
		err := r.rt.Interop().Close(closeCtx)
		r.groupTable.watchers.Wait()
		return err
	})
	return errors.Join(poolErr, err)
}

func (r *rank) abortGroups() {
	for _, g := range r.groupTable.allGroups() {
		g.Abort()
	}
}

// findStream returns the Stream for another library's stream handle. The first call creates it.
func (r *rank) findStream(handle uintptr) (*symmem.Stream, error) {
	s, ok := r.streams.find(handle)
	if !ok {
		var err error
		s, err = r.streams.findOrCreate(handle, r.rt.Interop().AdoptStream)
		if err != nil {
			return nil, err
		}
	}
	if len(r.session.ranks.allRanks()) > 1 && r.isHostBackend {
		use := r.session.lastUses.findOrAdd(handle, &lastUse{})
		return s, use.waitForOthers(streamUse{r, s}, handle)
	}
	return s, nil
}

// interopAt returns an Interop that records the call site of its calls, unless site is 0.
func (r *rank) interopAt(site uint32) symmem.Interop {
	interop := r.rt.Interop()
	if site == 0 {
		return interop
	}
	number, ok := r.sites.find(site)
	if !ok {
		text := r.session.sites.text(site)
		if text == "" {
			return interop
		}
		number = interop.Site(text)
		r.sites.add(site, number)
	}
	return interop.At(number)
}

// findMemory returns the memory at an address from C, or an error if the memory has been freed.
func (r *rank) findMemory(address uintptr, bytes int64) (symmem.Memory, error) {
	m, err := r.rt.Interop().Memory(address, bytes)
	if err == nil && m.Pool() == nil && bytes > 0 {
		err = r.checkNotFreedElsewhere(address, bytes)
	}
	return m, err
}

// checkNotFreedElsewhere returns an error if the memory belonged to another world and was freed.
func (r *rank) checkNotFreedElsewhere(address uintptr, bytes int64) error {
	for _, other := range r.session.ranks.allRanks() {
		if other == r {
			continue
		}
		if _, err := other.rt.Interop().Memory(address, bytes); err != nil {
			return err
		}
	}
	return r.session.closedRankBuffers.checkNotFreed(address, bytes, r.isHostBackend)
}

// register registers the new memory of a pool with a group and its attached communicators. During
// a capture of the stream, it returns ErrCapturing if there is new memory.
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
		for _, a := range r.groupTable.attachmentsOf(g) {
			if err := a.communicator.Register(ctx, p.Pool); err != nil {
				return err
			}
		}
		return nil
	})
}
