package binding

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"symmem"
)

// group is an open symmem.Group with a handle for C callers.
type group struct {
	*symmem.Group
	owner       *rank  // the rank that opened the group
	handle      uint64 // the number by which C callers pass the group
	name        string
	attachments []*attachment // guarded by groupTable.mu
	machines    int           // number of machines with ranks of the group
	padCount    atomic.Uint32 // checked pads opened so far
}

// nextPadNumber counts from 1 to maxPadNumber, and then begins again.
func (g *group) nextPadNumber() uint32 {
	index := g.padCount.Add(1) - 1
	return index%maxPadNumber + 1
}

// sharesPool reports whether all ranks of the group share the pool. Only memory of shared pools can
// be registered with the group.
func (g *group) sharesPool(p *pool) bool {
	sharingGroup := p.Domain()
	if sharingGroup == nil {
		return false // only this rank uses the pool
	}

	sharingRanks := sharingGroup.Ranks()
	for _, rank := range g.Ranks() {
		if !slices.Contains(sharingRanks, rank) {
			return false
		}
	}

	return true
}

// groupTable holds the open groups of one rank, and their attachments.
type groupTable struct {
	owner    *rank
	watchers sync.WaitGroup // one for each group that has not ended

	mu          sync.RWMutex           // guards the fields below
	groups      map[uint64]*group      // by handle
	attachments map[uint64]*attachment // by handle
	openCounts  map[string]int         // number of groups opened so far, by groupKey
}

func (t *groupTable) setUp(owner *rank) {
	t.owner = owner
	t.groups = map[uint64]*group{}
	t.attachments = map[uint64]*attachment{}
	t.openCounts = map[string]int{}
}

// nextID returns a new group's id, such as "tp [0 1] #2" for the second group "tp" of ranks 0 and
// 1. The nth call with the same arguments returns the same id on all ranks.
func (t *groupTable) nextID(name string, ranks []int) string {
	key := groupKey(name, ranks)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.openCounts[key]++
	return fmt.Sprintf("%s #%d", key, t.openCounts[key])
}

// groupKey returns an id without its number, such as "tp [0 1]". In a long key, a hash replaces the
// ranks and the end of the name.
func groupKey(name string, ranks []int) string {
	const maxBytes = symmem.MaxGroupID / 2 // leaves ample space for the number
	key := fmt.Sprintf("%s %v", name, ranks)
	if len(key) <= maxBytes {
		return key
	}

	hash := sha256.Sum256([]byte(key))
	return fmt.Sprintf("%.64s... %x", name, hash)
}

// add adds a group under a new handle, which it returns.
func (t *groupTable) add(g *symmem.Group, name string) uint64 {
	s := t.owner.session
	added := &group{
		Group: g, owner: t.owner, handle: s.lastHandle.Add(1), name: name,
		machines: g.Stats().Tuning.Machines,
	}
	t.mu.Lock()
	t.groups[added.handle] = added
	t.mu.Unlock()
	s.groupIndex.set(added.handle, added)
	t.watchers.Go(func() { watch(g, s.counters) })
	s.counters.pendingChanged() // pools may have memory to register with the group
	return added.handle
}

// watch updates the counters when a group fails and when it ends.
func watch(g *symmem.Group, counters *Counters) {
	select {
	case <-g.Failing():
		counters.Faults.Add(1)
		<-g.Ended()
	case <-g.Ended(): // without a failure
	}

	counters.pendingChanged()
	counters.windowsChanged() // the group has no windows now
}

func (t *groupTable) allGroups() []*group {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return slices.Collect(maps.Values(t.groups))
}

// remove removes a group and forgets its attached communicators.
func (t *groupTable) remove(g *group) {
	t.mu.Lock()
	delete(t.groups, g.handle)
	attachments := g.attachments
	g.attachments = nil
	for _, a := range attachments {
		delete(t.attachments, a.handle)
	}

	t.mu.Unlock()
	t.owner.session.groupIndex.remove(g.handle)
	for _, a := range attachments {
		a.communicator.Forget()
	}
}
