package binding

import (
	"context"
	"errors"
	"fmt"

	"symmem"
)

// worlds implements the functions in symmem.h for worlds other than the main world.
type worlds struct{ session *session }

// OpenWorld opens a world and returns its handle. All ranks of the new world must call it.
func (ws *worlds) OpenWorld(optionsJSON []byte) (uint64, error) {
	var o Options
	if err := decode(optionsJSON, &o); err != nil {
		return 0, fmt.Errorf("opening a world: %w", err)
	}

	if o.Pool != (PoolOptions{}) {
		return 0, fmt.Errorf("opening a world: the options must not describe a pool; open pools "+
			"later: %w", symmem.ErrInvalid)
	}

	s := ws.session
	open := func(ctx context.Context) (*rank, error) { return s.openRank(ctx, &o, otherWorld) }
	r, err := getInterruptible(&s.interrupts, "opening a world", open)
	if err != nil {
		return 0, err
	}

	return r.worldHandle, nil
}

// CloseWorld is like Close, but for any world.
func (ws *worlds) CloseWorld(handle uint64, force bool) error {
	r, err := ws.session.worldRank(handle)
	if err != nil {
		return err
	}

	return ws.session.closeRank(r, force)
}

// DescribeWorld is like Describe, but for any world.
func (ws *worlds) DescribeWorld(handle uint64) (string, error) {
	r, err := ws.session.worldRank(handle)
	if err != nil {
		return "", err
	}

	return describe(r)
}

// WorldStats is like Stats, but for any world.
func (ws *worlds) WorldStats(handle uint64) (string, error) {
	r, err := ws.session.worldRank(handle)
	if err != nil {
		return "", err
	}

	return statsOf(r)
}

// SetWorldCheck is like SetCheck, but for any world.
func (ws *worlds) SetWorldCheck(handle uint64, level int) error {
	r, err := ws.session.worldRank(handle)
	if err != nil {
		return err
	}

	return r.setCheck(level)
}

// worldKind distinguishes worlds by the function that opens them.
type worldKind int

const (
	mainWorld  worldKind = iota // Open
	aloneWorld                  // PlugAlloc: a main world with only this rank
	otherWorld                  // OpenWorld
)

func (k worldKind) isMain() bool { return k != otherWorld }

// openRank opens a world and adds this process's rank to the session. If ctx has ended meanwhile,
// openRank closes the world and returns the cause.
func (s *session) openRank(ctx context.Context, o *Options, kind worldKind) (*rank, error) {
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
	s.counters.pendingChanged() // the main pool may have memory to register
	if err := context.Cause(ctx); err != nil {
		// The C caller may have returned without a handle by which it can close the world.
		s.removeRank(r)
		closeErr := rt.Close()
		return nil, errors.Join(err, closeErr)
	}

	return r, nil
}

// closeRank closes this process's rank in a world. Without force, it returns ErrLive if there are
// live buffers.
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

	// Call add before removeRank, so that a concurrent Free finds the live buffers.
	s.closedRanks.add(r.rt.Interop())
	if !s.removeRank(r) {
		return nil // another call is closing the rank
	}

	closeErr := r.close(force)
	s.counters.pendingChanged()
	s.counters.windowsChanged()
	return errors.Join(append(poolErrs, closeErr)...)
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
