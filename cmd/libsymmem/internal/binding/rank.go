package binding

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"symmem"
)

// rank is this process's rank in one open world, a set of processes that use symmem together. The
// Runtime adopts streams and communicators of another library, such as PyTorch, on their first use.
type rank struct {
	session       *session
	rt            *symmem.Runtime
	isAlone       bool // PlugAlloc opened the world with only this rank
	isHostBackend bool // memory and streams are on the host, not on a GPU
	hasCallSites  bool // calls record their source lines (call sites)

	worldHandle uint64 // handle of the group of all ranks
	groupTable  groupTable
	streams     table[uintptr, *symmem.Stream]              // adopted, by handle
	pluginComms table[uintptr, *symmem.AdoptedCommunicator] // adopted by PlugRegister, by handle
	sites       table[uint32, uint32]                       // Runtime site numbers, by session site

	// padStream returns the stream for copies to and from checked pads, memory through which kernels
	// signal each other.
	padStream func() (*symmem.Stream, error)

	captureWarning sync.Once // printed by PlugRegister
}

// newRank returns a rank that is not yet in the session's list. For the main world, it opens the
// main pool.
func newRank(s *session, rt *symmem.Runtime, o *Options, kind rankKind) (*rank, error) {
	isGPU := rt.Device().Ordinal >= 0
	r := &rank{
		session: s, rt: rt, isAlone: kind == aloneRank, isHostBackend: !isGPU,
		hasCallSites: o.shouldRecordCallSites(), padStream: sync.OnceValues(rt.NewStream),
	}
	r.groupTable.init(r)
	r.installObserver()
	if kind.isMain() {
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

// installObserver makes the Runtime update the counters when memory is mapped or registered, and
// remember memory that it unmaps.
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

// close closes the Runtime of a rank that was removed from the session. It joins its error with
// poolErr. With force, it waits at most a second for other ranks.
func (r *rank) close(poolErr error, force bool) error {
	// The communicators may have been destroyed already, so do not deregister memory from them.
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
			cancel() // Close still waits for a second
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

// findStream returns the Stream for a stream handle of another library. The first call adopts the
// stream.
func (r *rank) findStream(handle uintptr) (*symmem.Stream, error) {
	s, isKnown := r.streams.find(handle)
	if !isKnown {
		var err error
		s, err = r.streams.findOrCreate(handle, r.rt.Interop().AdoptStream)
		if err != nil {
			return nil, err
		}
	}

	// All ranks of this process share a CUDA stream, but on the host backend, each rank has a separate
	// Stream for the handle. These Streams must wait for each other's earlier work.
	hasOtherRanks := len(r.session.ranks.allRanks()) > 1
	if r.isHostBackend && hasOtherRanks {
		last := r.session.lastUses.findOrAdd(handle, &lastUse{})
		err := last.waitForOthers(streamUse{r, s}, handle)
		return s, err
	}

	return s, nil
}

// interopAt returns an Interop whose calls record a call site, given by its number in the session.
// For an unknown number, such as 0, calls record no call site.
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

// findMemory returns the memory at an address, or an error if the memory was freed. It can belong
// to this rank, another rank of this process, or another library.
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

// checkNotFreedElsewhere returns an error if memory was freed in another rank of this process, even
// a closed one.
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

// register registers a pool's new memory with a group and its attached communicators. While the
// stream is captured to a CUDA graph, it returns ErrCapturing if there is new memory.
func (r *rank) register(g *group, p *pool, stream uintptr) error {
	if err := g.Cause(context.Background()); err != nil {
		return err // the group has failed
	}

	if err := p.flush(); err != nil { // completes delayed frees
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
