package binding

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"symmem"
)

// rank holds this process's state in one open world. A world is a set of processes that have opened
// symmem together. A process can be a rank of several worlds.
type rank struct {
	session       *session
	rt            *symmem.Runtime // of the world
	isAlone       bool            // PlugAlloc opened the world with only this rank
	isHostBackend bool            // memory and streams are on the host, so there is no device
	hasCallSites  bool            // calls record their source lines (call sites)

	worldHandle uint64 // handle of the group of all ranks
	groupTable  groupTable
	streams     table[uintptr, *symmem.Stream] // by the other library's handle
	// sites translates the number of a call site: from the session's number to that of rt.
	sites       table[uint32, uint32]
	pluginComms table[uintptr, *symmem.AdoptedCommunicator] // those of PlugRegister, by address

	// padStream returns the stream for copies to and from checked pads. The first call creates it.
	padStream func() (*symmem.Stream, error)

	captureWarning sync.Once // for the warning that the pool has grown during a graph capture
}

// newRank returns the rank of an open Runtime. For the main world, it also opens the main pool. It
// does not add the rank to the session.
func newRank(s *session, rt *symmem.Runtime, o *Options, kind rankKind) (*rank, error) {
	r := &rank{
		session: s, rt: rt, isAlone: kind == aloneRank, isHostBackend: rt.Device().Ordinal < 0,
		hasCallSites: o.shouldRecordCallSites(), padStream: sync.OnceValues(rt.NewStream),
	}
	r.groupTable.init(r)
	r.installObserver()
	isMainWorld := kind != otherRank
	if isMainWorld {
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

// installObserver keeps the counters and the record of unmapped memory up to date.
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
// waits at most a second for other ranks. Call it after removeRank.
func (r *rank) close(poolErr error, force bool) error {
	// Forget communicators instead of deregistering memory: their owners may already have destroyed
	// them.
	r.groupTable.forgetAttachments()
	for _, communicator := range r.pluginComms.removeAll() {
		communicator.Forget()
	}

	err := r.session.runInterruptible("closing symmem", func(ctx context.Context) error {
		// An interrupted close does not wait for the work of other ranks.
		stopAfterFunc := context.AfterFunc(ctx, r.abortGroups)
		defer stopAfterFunc()
		closeCtx, cancel := context.WithCancel(ctx)
		defer cancel()
		if force {
			cancel() // makes Close wait at most a second
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

// findStream returns the Stream for another library's stream handle. The first call creates it. If
// other ranks of this process use the same handle, later work on the Stream waits for their work.
func (r *rank) findStream(handle uintptr) (*symmem.Stream, error) {
	s, ok := r.streams.find(handle)
	if !ok {
		var err error
		s, err = r.streams.findOrCreate(handle, r.rt.Interop().AdoptStream)
		if err != nil {
			return nil, err
		}
	}

	// A CUDA stream orders the work of all ranks. On the host backend, each rank has a Stream for the
	// handle.
	hasOtherRanks := len(r.session.ranks.allRanks()) > 1
	if hasOtherRanks && r.isHostBackend {
		last := r.session.lastUses.findOrAdd(handle, &lastUse{})
		err := last.waitForOthers(streamUse{r, s}, handle)
		return s, err
	}

	return s, nil
}

// interopAt returns an Interop whose calls have a call site. site is a number of session.sites. If
// it is 0 or unknown, the calls have no call site.
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
	if err != nil {
		return m, err
	}

	isForeign := m.Pool() == nil // not memory of this rank's pools
	if isForeign && bytes > 0 {
		err = r.checkNotFreedElsewhere(address, bytes)
	}

	return m, err
}

// checkNotFreedElsewhere returns an error if the memory belonged to another rank of this process,
// open or closed, and was freed.
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

// register registers the new memory of a pool with a group and its attached communicators. While a
// CUDA graph is captured on the stream, nothing can be registered. register then returns
// ErrCapturing if there is new memory.
func (r *rank) register(g *group, p *pool, stream uintptr) error {
	if err := g.Cause(context.Background()); err != nil { // the group has failed
		return err
	}

	if err := p.flush(); err != nil {
		return err
	}

	if r.rt.Interop().IsCapturing(stream) {
		if r.rt.Interop().Pending(p.Pool, g.Group) {
			return fmt.Errorf("registering with group %s: %w", g.ID(), symmem.ErrCapturing)
		}

		return nil
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
