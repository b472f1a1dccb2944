package binding

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"symmem"
)

// A world is a set of processes, its ranks, that have opened symmem together. A process can be a
// rank of several worlds, and has a Runtime for each. The session holds all ranks of the process.
//
// Streams and communicators belong to another library, such as PyTorch. A call passes the handle of
// a stream, such as 0x7f00. The first call with this handle makes the Runtime adopt the stream: the
// Runtime then has a Stream for it. In the same way, it adopts communicators. If a communicator is
// attached to a group, memory that is registered with the group is also registered with it.

// rank is this process's rank in one open world.
type rank struct {
	session       *session
	rt            *symmem.Runtime
	isAlone       bool // PlugAlloc opened the world with only this rank
	isHostBackend bool // memory and streams are on the host, so there is no device
	hasCallSites  bool // calls record their source lines (call sites)

	worldHandle uint64 // handle of the group of all ranks
	groupTable  groupTable
	streams     table[uintptr, *symmem.Stream] // by the other library's handle
	pluginComms table[uintptr, *symmem.AdoptedCommunicator]
	// sites holds call sites that calls have passed. It maps a call site's number in the session to
	// its number in the Runtime.
	sites table[uint32, uint32]

	// padStream returns the stream for copies to and from checked pads, the memory through which
	// kernels signal each other. The first call creates it.
	padStream func() (*symmem.Stream, error)

	captureWarning sync.Once // for the warning that the pool has grown during a graph capture
}

// newRank returns the rank of a Runtime. For the main world, it also opens the main pool. It does
// not add the rank to the session.
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

// installObserver makes the Runtime update the counters and the record of unmapped memory. A
// segment is a piece of memory that is mapped and unmapped as a whole.
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
// waits at most a second for other ranks. Before close, the rank must be removed from the session.
func (r *rank) close(poolErr error, force bool) error {
	// Do not deregister memory from communicators, because their owners may have destroyed them.
	r.groupTable.forgetAttachments()
	for _, communicator := range r.pluginComms.removeAll() {
		communicator.Forget()
	}

	err := r.session.runInterruptible("closing symmem", func(ctx context.Context) error {
		// After an interrupt, make the groups fail, so that Close does not wait for other ranks.
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

// findStream returns the Stream for another library's stream handle. The first call adopts the
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

	// A CUDA stream orders the work of all ranks of this process. But on the host backend, each rank
	// has a separate Stream for the handle, so later work must wait for the work of the other ranks.
	hasOtherRanks := len(r.session.ranks.allRanks()) > 1
	mustWait := hasOtherRanks && r.isHostBackend
	if mustWait {
		last := r.session.lastUses.findOrAdd(handle, &lastUse{})
		err := last.waitForOthers(streamUse{r, s}, handle)
		return s, err
	}

	return s, nil
}

// interopAt returns an Interop whose calls record a call site. site is its number in the session.
// If this is 0 or unknown, the calls record no call site.
func (r *rank) interopAt(site uint32) symmem.Interop {
	interop := r.rt.Interop()
	if site == 0 {
		return interop
	}

	number, isKnown := r.sites.find(site)
	if !isKnown {
		text := r.session.sites.text(site)
		if text == "" {
			return interop
		}

		number = interop.Site(text)
		r.sites.add(site, number)
	}

	return interop.At(number)
}

// findMemory returns the memory at an address from C, or an error if the memory has been freed. It
// may be memory of this rank's pools, of other ranks of this process, or of another library.
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

// checkNotFreedElsewhere returns an error if the memory belonged to another rank of this process,
// open or closed, and has been freed.
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

// register registers a pool's new memory with a group, and with the communicators that are attached
// to the group. While a CUDA graph is captured on the stream, memory cannot be registered, so new
// memory causes ErrCapturing.
func (r *rank) register(g *group, p *pool, stream uintptr) error {
	if err := g.Cause(context.Background()); err != nil {
		return err // the group has failed
	}

	if err := p.flush(); err != nil { // frees the buffers whose frees were delayed
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
