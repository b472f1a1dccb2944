package binding

import (
	"fmt"
	"sync/atomic"

	"symmem"
)

// session holds the state of this process, which can be a rank of several worlds. A world is a set
// of processes that use symmem together. C callers pass groups and events by handles, numbers that
// are unique in the process.
type session struct {
	counters     *Counters
	printWarning func(text string)
	warnings
	interrupts

	ranks      rankList                 // this process's rank in each open world
	groupIndex table[uint64, *group]    // by handle; open groups of all ranks
	poolTable  poolTable                // open pools of all ranks
	events     table[uint64, event]     // by handle
	padTable   table[uintptr, *pad]     // by address; open checked pads of all ranks
	lastUses   table[uintptr, *lastUse] // by stream handle
	sites      siteTable

	closedRankBuffers closedRankBuffers
	lastHandle        atomic.Uint64 // handles are given out in ascending order, and never reused
}

// mainWorldRank returns this process's rank in the main world.
func (s *session) mainWorldRank() (*rank, error) {
	if r := s.ranks.main.Load(); r != nil {
		return r, nil
	}

	return nil, ErrNotOpen
}

// anyRank returns the rank of the main world or, if that is closed, the oldest open rank.
func (s *session) anyRank() (*rank, error) {
	if r := s.ranks.main.Load(); r != nil {
		return r, nil
	}

	if all := s.ranks.allRanks(); len(all) > 0 {
		return all[0], nil
	}

	return nil, ErrNotOpen
}

// unknownHandleError returns the error for a handle that is not in a table. kind is "group" or
// "event". The error is ErrNotOpen if no world is open, ErrClosed if the handle was once valid, and
// otherwise ErrInvalid.
func (s *session) unknownHandleError(kind string, handle uint64) error {
	if _, err := s.anyRank(); err != nil {
		return err
	}

	wasGivenOut := handle > 0 && handle <= s.lastHandle.Load()
	if wasGivenOut {
		return fmt.Errorf("%s with handle %d: %w", kind, handle, symmem.ErrClosed)
	}

	return fmt.Errorf("there is no %s with handle %d: %w", kind, handle, symmem.ErrInvalid)
}

// group returns the group with a handle, and its owner.
func (s *session) group(handle uint64) (*rank, *group, error) {
	g, ok := s.groupIndex.find(handle)
	if !ok {
		return nil, nil, s.unknownHandleError("group", handle)
	}

	return g.owner, g, nil
}

// world returns this process's rank in a world. A world and its group of all ranks have the same
// handle.
func (s *session) world(handle uint64) (*rank, error) {
	r, g, err := s.group(handle)
	if err != nil {
		return nil, err
	}

	if handle != r.worldHandle {
		return nil, fmt.Errorf("group %s is not a world: pass the handle that symmem_world_open or "+
			"symmem_world returned: %w", g.ID(), symmem.ErrInvalid)
	}

	return r, nil
}

// pool returns the pool with a number, and its owner. For LocalPool, the owner is anyRank.
func (s *session) pool(number int) (*rank, *pool, error) {
	r, err := s.anyRank()
	if err != nil {
		return nil, nil, err
	}

	p, err := s.poolTable.find(number, r)
	if err != nil {
		return nil, nil, err
	}

	return p.owner, p, nil
}

// flushedPool completes the delayed frees of a pool, and returns the pool.
func (s *session) flushedPool(number int) (*pool, error) {
	_, p, err := s.pool(number)
	if err != nil {
		return nil, err
	}

	return p, p.flush()
}
