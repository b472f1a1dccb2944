package binding

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"symmem"
	"symmem/internal/ledger"
)

// session holds the state of this process, which can have a rank in each of several worlds. C
// callers pass groups, worlds and events by handle: a number that is unique in the process.
type session struct {
	counters     *Counters
	printWarning func(text string)
	warnings
	interrupts

	ranks      rankList
	groupIndex table[uint64, *group]    // open groups in all worlds, by handle
	poolTable  poolTable                // open pools in all worlds
	events     table[uint64, event]     // by handle
	padTable   table[uintptr, *pad]     // open checked pads in all worlds, by address
	lastUses   table[uintptr, *lastUse] // by stream handle
	sites      siteTable

	closedRanks      closedRanks
	unmappedSegments unmappedSegments
	lastHandle       atomic.Uint64 // handles ascend, and are never reused
}

// Counters holds counters that C callers read from memory. They never decrease.
type Counters struct {
	Pending  atomic.Int64 // increases when there may be memory to register
	Windows  atomic.Int64 // increases when registered ranges of memory may have changed
	Faults   atomic.Int64 // failed groups
	Refused  atomic.Int64 // failed frees
	Warnings atomic.Int64 // all warnings so far
}

func (c *Counters) pendingChanged() { c.Pending.Add(1) }
func (c *Counters) windowsChanged() { c.Windows.Add(1) }

// rankList holds this process's rank in each open world. Reads take no lock.
type rankList struct {
	mu   sync.Mutex              // held during changes
	main atomic.Pointer[rank]    // rank in the main world; nil if it is closed
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

// remove returns false if another call has removed the rank already.
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
	if l.main.Load() == r {
		l.main.Store(nil)
	}

	return true
}

// mainWorldRank returns this process's rank in the main world.
func (s *session) mainWorldRank() (*rank, error) {
	if r := s.ranks.main.Load(); r != nil {
		return r, nil
	}

	return nil, ErrNotOpen
}

// anyRank returns the rank in the main world or, if that is closed, in the oldest open world.
func (s *session) anyRank() (*rank, error) {
	if r := s.ranks.main.Load(); r != nil {
		return r, nil
	}

	if all := s.ranks.allRanks(); len(all) > 0 {
		return all[0], nil
	}

	return nil, ErrNotOpen
}

// checkOpen returns ErrNotOpen if no world is open.
func (s *session) checkOpen() error {
	_, err := s.anyRank()
	return err
}

// unknownHandleError returns ErrNotOpen if no world is open, ErrClosed if the handle was once
// valid, and otherwise ErrInvalid. kind is "group" or "event".
func (s *session) unknownHandleError(kind string, handle uint64) error {
	if err := s.checkOpen(); err != nil {
		return err
	}

	wasIssued := handle > 0 && handle <= s.lastHandle.Load()
	if wasIssued {
		return fmt.Errorf("%s with handle %d: %w", kind, handle, symmem.ErrClosed)
	}

	return fmt.Errorf("there is no %s with handle %d: %w", kind, handle, symmem.ErrInvalid)
}

// group finds a group and its owner by the group's handle.
func (s *session) group(handle uint64) (owner *rank, g *group, err error) {
	g, ok := s.groupIndex.find(handle)
	if !ok {
		return nil, nil, s.unknownHandleError("group", handle)
	}

	return g.owner, g, nil
}

// worldRank returns this process's rank in a world. The handle of a world is that of its group of
// all ranks.
func (s *session) worldRank(handle uint64) (*rank, error) {
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

// pool finds a pool and its owner by the pool's number. LocalPool is the number of a
// pool of anyRank.
func (s *session) pool(number int) (owner *rank, p *pool, err error) {
	r, err := s.anyRank()
	if err != nil {
		return nil, nil, err
	}

	p, err = s.poolTable.find(number, r)
	if err != nil {
		return nil, nil, err
	}

	return p.owner, p, nil
}

// freeRetiredIn frees the retired buffers of a pool, and returns the pool.
func (s *session) freeRetiredIn(number int) (*pool, error) {
	_, p, err := s.pool(number)
	if err != nil {
		return nil, err
	}

	return p, p.freeRetired()
}

// Arguments of calls without a given stream or call site.
const (
	defaultStream = 0 // CUDA's default stream
	noSite        = 0 // unknown call site
)

// siteTable assigns numbers to call sites. The numbers are valid in all worlds.
type siteTable struct {
	mu    sync.RWMutex
	names *ledger.Sites // nil before the first site; guarded by mu
}

// number returns the number of a call site, such as "train.py:12".
func (t *siteTable) number(text string) uint32 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.names == nil {
		t.names = ledger.NewSites()
	}

	const noGoCode = 0
	return t.names.Intern(noGoCode, text)
}

// text returns the call site for a number, or "" if there is none.
func (t *siteTable) text(number uint32) string {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.names == nil {
		return ""
	}

	return t.names.At(number)
}
