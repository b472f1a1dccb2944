package binding

import (
	"fmt"
	"sync/atomic"

	"symmem"
)

// A world is a set of processes, its ranks, that have opened symmem together. A process can be a
// rank of several worlds: for example, rank 3 of the main world, and rank 0 of another world. Each
// rank can open groups of ranks, and pools of memory.
//
// C callers pass groups, events and attachments by numbers, their handles. An attachment is a
// communicator of another library that a group uses. Handles and the numbers of pools are unique in
// the process, so from a group's handle, session finds the rank that has opened the group.

// session holds the state of this process that the parts of a Library share.
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
	lastUses   table[uintptr, *lastUse] // by stream handle; for the host backend with several ranks
	sites      siteTable                // call sites
	// closedRankBuffers finds buffers that were live when their rank was closed.
	closedRankBuffers closedRankBuffers
	// lastHandle is the largest handle so far. It never decreases, so that no handle is reused.
	lastHandle atomic.Uint64
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

// unknownHandleError returns the error for an unknown handle. It is ErrNotOpen if no world is open,
// ErrClosed if the handle may have been valid earlier, and ErrInvalid otherwise. kind is "group" or
// "event".
func (s *session) unknownHandleError(kind string, handle uint64) error {
	if _, err := s.anyRank(); err != nil {
		return err
	}

	mayHaveBeenValid := handle > 0 && handle <= s.lastHandle.Load()
	if !mayHaveBeenValid {
		return fmt.Errorf("there is no %s with handle %d: %w", kind, handle, symmem.ErrInvalid)
	}

	return fmt.Errorf("%s with handle %d: %w", kind, handle, symmem.ErrClosed)
}

// group returns the group with a handle, and the rank that has opened the group.
func (s *session) group(handle uint64) (*rank, *group, error) {
	g, ok := s.groupIndex.find(handle)
	if !ok {
		return nil, nil, s.unknownHandleError("group", handle)
	}

	return g.owner, g, nil
}

// world returns this process's rank in a world. The handle of the world is the handle of the group
// of all its ranks.
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

// pool returns the pool with a number, and the rank that has opened the pool. The number LocalPool
// stands for the local memory of the rank that anyRank returns.
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

// flushedPool returns a pool after it has freed the pool's retired buffers. The caller has freed
// them already, but they stay allocated until a call that is the same on all ranks.
func (s *session) flushedPool(number int) (*pool, error) {
	_, p, err := s.pool(number)
	if err != nil {
		return nil, err
	}

	return p, p.flush()
}
