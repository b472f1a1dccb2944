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

// rankList holds this process's rank in each open world. Reads take no lock.
type rankList struct {
	mu   sync.Mutex
	main atomic.Pointer[rank]    // the main world's rank; nil while that world is closed
	list atomic.Pointer[[]*rank] // oldest first; replaced, never modified
}

func (l *rankList) allRanks() []*rank {
	if list := l.list.Load(); list != nil {
		return *list
	}
	return nil
}

func (l *rankList) add(r *rank, isMain bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := append(slices.Clone(l.allRanks()), r)
	l.list.Store(&list)
	if isMain {
		l.main.Store(r)
	}
}

func (l *rankList) remove(r *rank) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := slices.Clone(l.allRanks())
	index := slices.Index(list, r)
	if index < 0 {
		return false
	}
	list = slices.Delete(list, index, index+1)
	l.list.Store(&list)
	l.main.CompareAndSwap(r, nil)
	return true
}

// worlds implements the functions in symmem.h for worlds other than the main one.
type worlds struct{ session *session }

// OpenWorld opens a world other than the main one with the JSON options that symmem.h describes.
// It returns the world's handle. It is collective over the ranks of the new world.
func (ws *worlds) OpenWorld(optionsJSON []byte) (uint64, error) {
	var o Options
	if err := decode(optionsJSON, &o); err != nil {
		return 0, fmt.Errorf("opening a world: %w", err)
	}
	if o.Pool != (PoolOptions{}) {
		return 0, fmt.Errorf("opening a world: the options must not describe a pool; open pools "+
			"later: %w", symmem.ErrInvalid)
	}
	var opened *rank // must not be read after an interrupt, when the call may still write it
	err := ws.session.runInterruptible("opening a world", func(ctx context.Context) (err error) {
		opened, err = ws.session.openRank(ctx, &o, otherRank)
		return err
	})
	if err != nil {
		return 0, err
	}
	return opened.worldHandle, nil
}

// CloseWorld closes a world as Close closes the main world.
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

// SetWorldCheck sets the check level of a world.
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

type rankKind int

const (
	mainRank  rankKind = iota // Open opened the main world
	aloneRank                 // PlugAlloc opened the main world with only this rank
	otherRank                 // OpenWorld opened another world
)

// openRank opens a world and adds this process's rank to the session. If ctx has been canceled by
// then, openRank closes the world again.
func (s *session) openRank(ctx context.Context, o *Options, kind rankKind) (*rank, error) {
	if err := o.setEnvironment(); err != nil {
		return nil, err
	}
	if o.GoMaxProcs > 0 || len(s.ranks.allRanks()) == 0 {
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
		return nil, errors.Join(fmt.Errorf("opening symmem: %w", err), rt.Close())
	}
	s.ranks.add(r, kind != otherRank)
	s.counters.Pending.Add(1)
	if err := context.Cause(ctx); err != nil { // runInterruptible has already returned this error
		s.removeRank(r)
		return nil, errors.Join(err, rt.Close())
	}
	return r, nil
}

// closeRank closes a rank's world. Without force, it returns ErrLive if there are live buffers.
// With force, live buffers stay usable; see closedRankBuffers.
func (s *session) closeRank(r *rank, force bool) error {
	if count, bytes := s.poolTable.countLive(r); count > 0 && !force {
		return fmt.Errorf("closing symmem: %d buffers of %d bytes: %w", count, bytes, ErrLive)
	}
	var errs []error
	for _, p := range s.poolTable.ownedBy(r) {
		errs = append(errs, p.beginClose())
	}
	s.closedRankBuffers.keepRank(r.rt.Interop())
	if !s.removeRank(r) {
		return nil // another call is closing the rank
	}
	err := r.close(errors.Join(errs...), force)
	s.counters.Pending.Add(1)
	s.counters.Windows.Add(1)
	return err
}

// removeRank removes a rank from all tables. It returns false if another call has removed it.
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
