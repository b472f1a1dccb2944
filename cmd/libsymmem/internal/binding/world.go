package binding

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"symmem"
)

// rankKind says which function opened a rank's world.
type rankKind int

const (
	mainRank  rankKind = iota // Open opened the main world
	aloneRank                 // PlugAlloc opened the main world with only this rank
	otherRank                 // OpenWorld opened another world
)

// rankList holds this process's ranks, one in each open world: a set of processes that use symmem
// together. Reads take no lock.
type rankList struct {
	mu   sync.Mutex              // held during changes
	main atomic.Pointer[rank]    // in the main world; nil while that is closed
	all  atomic.Pointer[[]*rank] // oldest first; each change stores a new slice
}

// allRanks returns the ranks, oldest first. The caller must not modify the slice.
func (l *rankList) allRanks() []*rank {
	if all := l.all.Load(); all != nil {
		return *all
	}

	return nil
}

func (l *rankList) add(r *rank, isMain bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	changed := append(slices.Clone(l.allRanks()), r)
	l.all.Store(&changed)
	if isMain {
		l.main.Store(r)
	}
}

// remove returns false if the list does not contain the rank.
func (l *rankList) remove(r *rank) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	changed := slices.Clone(l.allRanks())
	index := slices.Index(changed, r)
	if index < 0 {
		return false
	}

	changed = slices.Delete(changed, index, index+1)
	l.all.Store(&changed)
	l.main.CompareAndSwap(r, nil) // if r is the main world's rank
	return true
}

// worlds implements the functions in symmem.h for worlds other than the main world. C callers pass
// them by handles.
type worlds struct{ session *session }

// OpenWorld opens another world with options that symmem.h describes, and returns its handle. All
// ranks of the new world must call it.
func (ws *worlds) OpenWorld(optionsJSON []byte) (uint64, error) {
	var o Options
	if err := decode(optionsJSON, &o); err != nil {
		return 0, fmt.Errorf("opening a world: %w", err)
	}

	if o.Pool != (PoolOptions{}) {
		return 0, fmt.Errorf("opening a world: the options must not describe a pool; open pools "+
			"later: %w", symmem.ErrInvalid)
	}

	var opened *rank
	err := ws.session.runInterruptible("opening a world", func(ctx context.Context) error {
		r, err := ws.session.openRank(ctx, &o, otherRank)
		opened = r
		return err
	})
	if err != nil {
		return 0, err // after an interrupt, opened may still be written
	}

	return opened.worldHandle, nil
}

// CloseWorld closes a world. Without force, it returns ErrLive if there are live buffers.
func (ws *worlds) CloseWorld(handle uint64, force bool) error {
	r, err := ws.session.world(handle)
	if err != nil {
		return err
	}

	return ws.session.closeRank(r, force)
}

// DescribeWorld returns, as JSON, a description of this process's rank in a world.
func (ws *worlds) DescribeWorld(handle uint64) (string, error) {
	r, err := ws.session.world(handle)
	if err != nil {
		return "", err
	}

	return describe(r)
}

// WorldStats returns, as JSON, all counters of a world.
func (ws *worlds) WorldStats(handle uint64) (string, error) {
	r, err := ws.session.world(handle)
	if err != nil {
		return "", err
	}

	return statsOf(r)
}

// SetWorldCheck sets how often the ranks of a world compare their calls. All ranks must call it.
func (ws *worlds) SetWorldCheck(handle uint64, level int) error {
	r, err := ws.session.world(handle)
	if err != nil {
		return err
	}

	return ws.session.setCheck(r, level)
}

func (s *session) setCheck(r *rank, level int) error {
	checkLevel, err := parseEnum("check level", checkLevels, level)
	if err != nil {
		return err
	}

	return s.runInterruptible("setting the check level", func(ctx context.Context) error {
		return r.rt.SetCheck(ctx, checkLevel)
	})
}

// openRank opens a world and adds its rank to the session, unless ctx ends meanwhile.
func (s *session) openRank(ctx context.Context, o *Options, kind rankKind) (*rank, error) {
	if err := o.setEnvironment(); err != nil {
		return nil, err
	}

	isFirstWorld := len(s.ranks.allRanks()) == 0
	if isFirstWorld || o.GoMaxProcs > 0 {
		o.setMaxProcs()
	}

	options, err := o.runtimeOptions()
	if err != nil {
		return nil, fmt.Errorf("opening symmem: %w", err)
	}

	options.OnLate = s.addLate
	options.Interrupted = s.pollInCollective
	rt, err := symmem.Open(ctx, options)
	if err != nil {
		return nil, err
	}

	r, err := newRank(s, rt, o, kind)
	if err != nil {
		closeErr := rt.Close()
		return nil, errors.Join(fmt.Errorf("opening symmem: %w", err), closeErr)
	}

	isMain := kind != otherRank
	s.ranks.add(r, isMain)
	s.counters.Pending.Add(1) // the world's pool may have memory to register
	if err := context.Cause(ctx); err != nil {
		// The interrupted caller may have returned already, so it cannot close the world.
		s.removeRank(r)
		closeErr := rt.Close()
		return nil, errors.Join(err, closeErr)
	}

	return r, nil
}

// closeRank closes a rank's world. Without force, it returns ErrLive if there are live buffers.
func (s *session) closeRank(r *rank, force bool) error {
	count, bytes := s.poolTable.countLive(r)
	if count > 0 && !force {
		return fmt.Errorf("closing symmem: %d buffers of %d bytes: %w", count, bytes, ErrLive)
	}

	var poolErrs []error
	for _, p := range s.poolTable.ownedBy(r) {
		err := p.beginClose() // frees buffers whose frees were delayed
		poolErrs = append(poolErrs, err)
	}

	// Keep the buffers before removing the rank, so that concurrent calls always find them.
	s.closedRankBuffers.keepRank(r.rt.Interop())
	if !s.removeRank(r) {
		return nil // another call is closing the rank
	}

	err := r.close(errors.Join(poolErrs...), force)
	s.counters.Pending.Add(1)
	s.counters.Windows.Add(1)
	return err
}

// removeRank removes a rank and its groups, pools, events and pads from the session. It returns
// false if another call has removed the rank already.
func (s *session) removeRank(r *rank) bool {
	if !s.ranks.remove(r) {
		return false
	}

	for _, g := range r.groupTable.allGroups() {
		s.groupIndex.remove(g.handle)
	}

	s.poolTable.removeAll(r)
	s.lastUses.removeIf(func(u *lastUse) bool { return u.rank.Load() == r })
	s.events.removeIf(func(e event) bool { return e.belongsTo(r) })
	s.padTable.removeIf(func(p *pad) bool { return p.owner == r })
	return true
}
