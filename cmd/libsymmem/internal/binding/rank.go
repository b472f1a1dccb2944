package binding

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"symmem"
)

// rank is this process's rank in one open world, a set of processes that use symmem together. Its
// Runtime adopts streams and communicators of another library, such as PyTorch, when a call first
// passes their handles.
type rank struct {
	session       *session
	rt            *symmem.Runtime
	isAlone       bool // PlugAlloc opened the world with only this rank
	isHostBackend bool // memory and streams are on the host
	hasCallSites  bool // calls record their source lines (call sites)

	worldHandle uint64 // handle of the group of all ranks
	groupTable  groupTable
	streams     table[uintptr, *symmem.Stream]              // adopted, by handle
	pluginComms table[uintptr, *symmem.AdoptedCommunicator] // adopted by PlugRegister, by handle
	sites       table[uint32, uint32]                       // for interopAt

	// padStream returns the stream for copies to and from checked pads, memory through which kernels
	// signal each other.
	padStream func() (*symmem.Stream, error)

	captureWarning sync.Once // for PlugRegister
}

// newRank does not add the rank to the session. For the main world, it opens the main pool.
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

// installObserver makes the Runtime update the counters, and record unmapped segments of memory.
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

// close closes the Runtime of a rank that was removed from the session, and joins the error with
// poolErr. With force, it waits at most a second for other ranks.
func (r *rank) close(poolErr error, force bool) error {
	// Do not deregister memory from communicators, because their owners may have destroyed them.
	r.groupTable.forgetAttachments()
	for _, communicator := range r.pluginComms.removeAll() {
		communicator.Forget()
	}

	err := r.session.runInterruptible("closing symmem", func(ctx context.Context) error {
		// An interrupt aborts the groups, so that Close does not wait for other ranks.
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

// findStream returns the Stream for a handle of another library, whose stream the first call
// adopts.
func (r *rank) findStream(handle uintptr) (*symmem.Stream, error) {
	s, isKnown := r.streams.find(handle)
	if !isKnown {
		var err error
		s, err = r.streams.findOrCreate(handle, r.rt.Interop().AdoptStream)
		if err != nil {
			return nil, err
		}
	}

	// A CUDA stream orders the work of all ranks of this process. On the host backend, each rank has a
	// separate Stream for the handle, so this one must wait for earlier work of the others.
	hasOtherRanks := len(r.session.ranks.allRanks()) > 1
	if r.isHostBackend && hasOtherRanks {
		last := r.session.lastUses.findOrAdd(handle, &lastUse{})
		err := last.waitForOthers(streamUse{r, s}, handle)
		return s, err
	}

	return s, nil
}

// interopAt returns an Interop whose calls record a call site, unless its number in the session is
// 0 or unknown. The Runtime has a different number for the call site, which sites caches.
func (r *rank) interopAt(site uint32) symmem.Interop {
	interop := r.rt.Interop()
	if site == 0 {
		return interop
	}

	siteInRuntime, isKnown := r.sites.find(site)
	if !isKnown {
		text := r.session.sites.text(site)
		if text == "" {
			return interop
		}

		siteInRuntime = interop.Site(text)
		r.sites.add(site, siteInRuntime)
	}

	return interop.At(siteInRuntime)
}

// findMemory returns the memory of this rank, another rank of this process, or another library at
// an address. Freed memory causes an error.
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

// checkNotFreedElsewhere returns an error for freed memory of another open or closed rank of this
// process.
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

// register registers a pool's new memory with a group and its attached communicators. During a CUDA
// graph capture on the stream, it returns ErrCapturing if there is new memory.
func (r *rank) register(g *group, p *pool, stream uintptr) error {
	if err := g.Cause(context.Background()); err != nil {
		return err // the group has failed
	}

	if err := p.flush(); err != nil { // frees buffers whose frees were delayed
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
