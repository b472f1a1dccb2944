package binding

import (
	"context"
	"fmt"
	"sync"

	"symmem"
)

// rank is this process's rank in one open world. A world is a set of processes that use symmem
// together.
type rank struct {
	session       *session
	rt            *symmem.Runtime
	isAlone       bool // PlugAlloc opened the world with only this rank
	isHostBackend bool // memory and streams are on the host, not on a GPU
	hasCallSites  bool // calls record their source lines

	worldHandle uint64 // handle of the group of all ranks
	groupTable  groupTable
	streams     table[uintptr, *symmem.Stream]              // adopted streams, by handle
	pluginComms table[uintptr, *symmem.AdoptedCommunicator] // of PlugRegister, by ncclComm_t
	sites       table[uint32, uint32]                       // number in rt, by number in session

	padStream func() (*symmem.Stream, error) // returns the stream for copies of checked pads

	captureWarning sync.Once // for the warning of PlugRegister
}

// newRank returns a rank that is not yet in session.ranks. For the main world, it opens the main
// pool.
func newRank(s *session, rt *symmem.Runtime, o *Options, kind worldKind) (*rank, error) {
	r := &rank{
		session: s, rt: rt, isAlone: kind == aloneWorld,
		isHostBackend: rt.Device().Ordinal < 0,
		hasCallSites:  o.shouldRecordCallSites(), padStream: sync.OnceValues(rt.NewStream),
	}
	r.groupTable.setUp(r)
	r.installObserver()
	if kind.isMain() {
		options, err := o.Pool.poolOptions(rt.World())
		if err != nil {
			return nil, err
		}

		if err := s.poolTable.openMainPool(r, options); err != nil {
			return nil, err
		}
	}

	r.worldHandle = r.groupTable.add(rt.World(), "world")
	return r, nil
}

// installObserver makes the Runtime update the session's counters and unmappedSegments.
func (r *rank) installObserver() {
	counters := r.session.counters
	r.rt.Interop().Observe(symmem.Observer{
		SegmentAlloc: func(symmem.SegmentEvent) { counters.pendingChanged() },
		SegmentFree: func(e symmem.SegmentEvent) {
			counters.windowsChanged()
			r.session.unmappedSegments.add(e)
		},
		Register:   func(symmem.WindowEvent) { counters.windowsChanged() },
		Deregister: func(symmem.WindowEvent) { counters.windowsChanged() },
	})
}

// close closes the Runtime of a rank that was removed from the session.
func (r *rank) close(force bool) error {
	// The communicators may have been destroyed already, so do not deregister memory from them.
	r.groupTable.forgetAttachments()
	for _, communicator := range r.pluginComms.removeAll() {
		communicator.Forget()
	}

	return r.session.runInterruptible("closing symmem", func(ctx context.Context) error {
		// An interrupt aborts the groups, so that Close does not wait for other ranks.
		stopWatching := context.AfterFunc(ctx, r.abortGroups)
		defer stopWatching()
		closeCtx, cancel := context.WithCancel(ctx)
		defer cancel()
		if force {
			cancel() // Close then waits for other ranks for at most a second
		}

		err := r.rt.Interop().Close(closeCtx) // ends all groups
		r.groupTable.watchers.Wait()
		return err
	})
}

func (r *rank) abortGroups() {
	for _, g := range r.groupTable.allGroups() {
		g.Abort()
	}
}

func (r *rank) setCheck(level int) error {
	checkLevel, err := parseEnum("check level", checkLevels, level)
	if err != nil {
		return err
	}

	return r.session.runInterruptible("setting the check level", func(ctx context.Context) error {
		return r.rt.SetCheck(ctx, checkLevel)
	})
}

// findStream returns the Stream for a stream handle of another library, such as PyTorch.
func (r *rank) findStream(handle uintptr) (*symmem.Stream, error) {
	s, isKnown := r.streams.find(handle)
	if !isKnown {
		var err error
		s, err = r.streams.findOrCreate(handle, r.rt.Interop().AdoptStream)
		if err != nil {
			return nil, err
		}
	}

	// On the host backend, each rank of this process has a Stream for the handle. Work of one rank
	// must wait for earlier work of the others.
	hasOtherRanks := len(r.session.ranks.allRanks()) > 1
	if r.isHostBackend && hasOtherRanks {
		last := r.session.lastUses.findOrSet(handle, &lastUse{})
		err := last.waitForOthers(streamUse{rank: r, stream: s}, handle)
		return s, err
	}

	return s, nil
}

// interopAt returns an Interop whose calls record the call site with a number in session.sites, or
// none if the number is unknown.
func (r *rank) interopAt(site uint32) symmem.Interop {
	interop := r.rt.Interop()
	if site == noSite {
		return interop
	}

	runtimeSite, isKnown := r.sites.find(site)
	if !isKnown {
		text := r.session.sites.text(site)
		if text == "" {
			return interop
		}

		runtimeSite = interop.Site(text)
		r.sites.set(site, runtimeSite)
	}

	return interop.At(runtimeSite)
}

// findMemory returns the memory at an address, or an error if the memory was freed. The memory can
// belong to this rank, another rank of this process, or another library.
func (r *rank) findMemory(address uintptr, bytes int64) (symmem.Memory, error) {
	m, err := r.rt.Interop().Memory(address, bytes)
	if err != nil {
		return m, err
	}

	isOwn := m.Pool() != nil
	if !isOwn && bytes > 0 {
		err = r.checkNotFreedElsewhere(address, bytes)
	}

	return m, err
}

// checkNotFreedElsewhere returns an error if memory belonged to another rank of this process, open
// or closed, and was freed.
func (r *rank) checkNotFreedElsewhere(address uintptr, bytes int64) error {
	for _, other := range r.session.ranks.allRanks() {
		if other == r {
			continue
		}

		_, err := other.rt.Interop().Memory(address, bytes) // no error outside the rank's pools
		if err != nil {
			return err
		}
	}

	if err := r.session.closedRanks.checkNotFreed(address, bytes); err != nil {
		return err
	}

	if r.isHostBackend {
		return r.session.unmappedSegments.checkMapped(address)
	}

	return nil
}

// register registers a pool's new memory with a group and its attached communicators. While the
// stream is captured to a CUDA graph, it registers nothing, and returns ErrCapturing if there is
// new memory.
func (r *rank) register(g *group, p *pool, stream uintptr) error {
	failure := g.Cause(context.Background())
	if failure != nil {
		return failure
	}

	if err := p.freeRetired(); err != nil {
		return err
	}

	if r.rt.Interop().IsCapturing(stream) {
		hasNewMemory := r.rt.Interop().Pending(p.Pool, g.Group)
		if hasNewMemory {
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
