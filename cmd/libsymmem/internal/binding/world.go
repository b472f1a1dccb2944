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

// A world is a set of processes, its ranks, that have opened symmem together. A process can be a
// rank of several worlds: for example, rank 3 of the main world, and rank 0 of another world. C
// passes other worlds by numbers, their handles. For example, Describe is for the main world, and
// DescribeWorld is for the world with a handle.

// rankKind says which function opened a rank's world.
type rankKind int

const (
	mainRank  rankKind = iota // Open opened the main world
	aloneRank                 // PlugAlloc opened the main world with only this rank
	otherRank                 // OpenWorld opened another world
)

// rankList holds this process's ranks, one in each open world. Reads take no lock.
type rankList struct {
	mu   sync.Mutex              // held during changes
	main atomic.Pointer[rank]    // the main world's rank; nil while that world is closed
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

// remove removes a rank. It returns false if the list does not contain the rank.
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
	l.main.CompareAndSwap(r, nil) // no effect unless r is the main world's rank
	return true
}

// worlds implements the functions in symmem.h that open and use other worlds than the main one.
type worlds struct{ session *session }

// OpenWorld opens another world and returns its handle. symmem.h describes the options. All ranks
// of the new world must call OpenWorld.
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
		return 0, err // the function may still be running, so do not read opened
	}

	return opened.worldHandle, nil
}

// CloseWorld closes a world. Unless force is set, it returns ErrLive if there are live buffers.
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

// SetWorldCheck sets the check level of a world: how often its ranks compare their calls. All ranks
// of the world must call it.
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

// openRank opens a world and adds this process's rank to the session. If ctx ends in the meantime,
// openRank closes the world again.
func (s *session) openRank(ctx context.Context, o *Options, kind rankKind) (*rank, error) {
	if err := o.setEnvironment(); err != nil {
		return nil, err
	}

	isFirstWorld := len(s.ranks.allRanks()) == 0
	if o.GoMaxProcs > 0 || isFirstWorld {
		o.setMaxProcs() // without the option, the first world sets a default
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
	err = context.Cause(ctx)
	wasInterrupted := err != nil // the caller has already got an error, so it cannot use the world
	if wasInterrupted {
		s.removeRank(r)
		closeErr := rt.Close()
		return nil, errors.Join(err, closeErr)
	}

	return r, nil
}

// closeRank closes a rank's world. Without force, it returns ErrLive if there are live buffers.
// With force, live buffers stay usable: closedRankBuffers finds them after the close.
func (s *session) closeRank(r *rank, force bool) error {
	count, bytes := s.poolTable.countLive(r)
	isRefused := count > 0 && !force
	if isRefused {
		return fmt.Errorf("closing symmem: %d buffers of %d bytes: %w", count, bytes, ErrLive)
	}

	var poolErrs []error
	for _, p := range s.poolTable.ownedBy(r) {
		err := p.beginClose() // frees the buffers whose frees were delayed
		poolErrs = append(poolErrs, err)
	}

	// Keep the rank's buffers before its removal, so that calls can find them at any time.
	s.closedRankBuffers.keepRank(r.rt.Interop())
	isRemoved := s.removeRank(r)
	if !isRemoved {
		return nil // another call is closing the rank
	}

	err := r.close(errors.Join(poolErrs...), force)
	s.counters.Pending.Add(1)
	s.counters.Windows.Add(1)
	return err
}

// removeRank removes a rank from the session, and the rank's groups, pools and events. It returns
// false if another call has already removed the rank.
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
