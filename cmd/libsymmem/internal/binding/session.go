package binding

import (
	"fmt"
	"sync/atomic"

	"symmem"
)

// session holds the shared state of the parts of a Library.
type session struct {
	counters     *Counters
	printWarning func(text string)
	warnings
	interrupts

	ranks             rankList
	groupIndex        table[uint64, *group] // by handle; open groups of all ranks
	poolTable         poolTable
	events            table[uint64, event]     // by handle
	padTable          table[uintptr, *pad]     // by address; open pads of all ranks
	lastUses          table[uintptr, *lastUse] // by stream handle; used with several worlds
	sites             siteTable
	closedRankBuffers closedRankBuffers
	// lastHandle is the largest handle of a group, an event or an attachment. It is never reset, so
	// that no handle is reused.
	lastHandle atomic.Uint64
}

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

// errUnknownHandle returns the error for a handle that is not open: ErrNotOpen if no world is
// open, ErrClosed if the handle was valid earlier, and ErrInvalid otherwise.
func (s *session) errUnknownHandle(kind string, handle uint64) error {
	if _, err := s.anyRank(); err != nil {
		return err
	}
	if handle == 0 || handle > s.lastHandle.Load() {
		return fmt.Errorf("there is no %s with handle %d: %w", kind, handle, symmem.ErrInvalid)
	}
	return fmt.Errorf("%s with handle %d: %w", kind, handle, symmem.ErrClosed)
}

func (s *session) group(handle uint64) (*rank, *group, error) {
	if g, ok := s.groupIndex.find(handle); ok {
		return g.owner, g, nil
	}
	return nil, nil, s.errUnknownHandle("group", handle)
}

// world returns this process's rank in the world whose group of all ranks has the handle.
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

// flushedPool frees a pool's retired buffers and returns the pool.
func (s *session) flushedPool(number int) (*pool, error) {
	_, p, err := s.pool(number)
	if err != nil {
		return nil, err
	}
	return p, p.flush()
}
