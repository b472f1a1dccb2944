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

// rankKind identifies the function that opened a rank's world.
type rankKind int

const (
	mainRank  rankKind = iota // Open opened the main world
	aloneRank                 // PlugAlloc opened the main world with only this rank
	otherRank                 // OpenWorld opened another world
)

func (k rankKind) isMain() bool { return k == mainRank || k == aloneRank }

// rankList holds this process's rank in each open world. A world is a set of processes that use
// symmem together. Reads take no lock.
type rankList struct {
	mu   sync.Mutex              // held during changes
	main atomic.Pointer[rank]    // rank in the main world; nil if the main world is not open
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
	l.main.CompareAndSwap(r, nil) // has no effect in other worlds than the main world
	return true
}

// worlds implements the functions symmem_world_* of symmem.h, except symmem_world_group_open.
type worlds struct{ session *session }

// OpenWorld opens a world in addition to the main world, and returns the new world's handle. All
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
		return 0, err // after an interrupt, the function may still write opened
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

// openRank opens a world and adds this process's rank to the session. If ctx ends meanwhile, it
// closes the world again.
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

	s.ranks.add(r, kind.isMain())
	s.counters.Pending.Add(1) // the world's pool may have memory to register
	if err := context.Cause(ctx); err != nil {
		// The caller was interrupted, and may have returned without a handle to close the world.
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
		err := p.beginClose() // completes delayed frees
		poolErrs = append(poolErrs, err)
	}

	// Keep the rank's buffers before the rank is removed, so that concurrent calls always find them.
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
