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

// group is an open group of one rank, with what the binding adds to a symmem.Group.
type group struct {
	*symmem.Group
	owner       *rank
	handle      uint64
	name        string        // as passed to OpenGroup; the ID is longer
	attachments []*attachment // guarded by groupTable.mu
	machines    int           // number of machines that have ranks of the group
	padCount    atomic.Uint32
}

// nextPadNumber returns the number of the group's next checked pad: 1 to 255, then 1 again.
func (g *group) nextPadNumber() uint32 { return (g.padCount.Add(1)-1)%255 + 1 }

// isWithinDomain reports whether all ranks of the group share the pool, so that its memory can be
// registered with the group.
func (g *group) isWithinDomain(p *pool) bool {
	domain := p.Domain()
	if domain == nil {
		return false
	}
	sharing := domain.Ranks()
	isOutside := func(rank int) bool { return !slices.Contains(sharing, rank) }
	return !slices.ContainsFunc(g.Ranks(), isOutside)
}

// attachment is a communicator of another library that uses a group's windows.
type attachment struct {
	handle       uint64
	address      uintptr
	communicator *symmem.AdoptedCommunicator
	group        *group
}

// groupTable holds one rank's groups and attachments. session.groupIndex holds the groups of all
// ranks.
type groupTable struct {
	owner    *rank
	watchers sync.WaitGroup // goroutines that run until their group ends

	mu          sync.RWMutex
	groups      map[uint64]*group      // guarded by mu
	attachments map[uint64]*attachment // guarded by mu
	openCounts  map[string]int         // by groupID; guarded by mu
}

func (t *groupTable) init(owner *rank) {
	t.owner = owner
	t.groups, t.attachments = map[uint64]*group{}, map[uint64]*attachment{}
	t.openCounts = map[string]int{}
}

// add returns the group's handle. A goroutine updates the Counters when the group fails or ends.
func (t *groupTable) add(g *symmem.Group, name string) uint64 {
	s := t.owner.session
	added := &group{
		Group: g, owner: t.owner, handle: s.lastHandle.Add(1), name: name,
		machines: g.Stats().Tuning.Machines,
	}
	t.mu.Lock()
	t.groups[added.handle] = added
	t.mu.Unlock()
	s.groupIndex.add(added.handle, added)
	t.watchers.Go(func() {
		select {
		case <-g.Failing():
			s.counters.Faults.Add(1)
		case <-g.Ended(): // the group was closed without an error
		}
		<-g.Ended()
		s.counters.Pending.Add(1)
		s.counters.Windows.Add(1)
	})
	s.counters.Pending.Add(1)
	return added.handle
}

func (t *groupTable) allGroups() []*group {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return slices.Collect(maps.Values(t.groups))
}

// nextID returns the id for a new group. The id ends with a counter, because the same ranks can
// open several groups with one name.
func (t *groupTable) nextID(name string, ranks []int) string {
	id := groupID(name, ranks)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.openCounts[id]++
	return fmt.Sprintf("%s #%d", id, t.openCounts[id])
}

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

func (t *groupTable) attach(a *attachment) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.attachments[a.handle] = a
	a.group.attachments = append(a.group.attachments, a)
}

// detach removes an attachment and returns it, or nil if this rank has none with the handle.
func (t *groupTable) detach(handle uint64) *attachment {
	t.mu.Lock()
	defer t.mu.Unlock()
	a := t.attachments[handle]
	if a == nil {
		return nil
	}
	delete(t.attachments, handle)
	isDetached := func(other *attachment) bool { return other == a }
	a.group.attachments = slices.DeleteFunc(slices.Clone(a.group.attachments), isDetached)
	return a
}

func (t *groupTable) attachmentsOf(g *group) []*attachment {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return slices.Clone(g.attachments)
}

func (t *groupTable) forgetAttachments() {
	t.mu.Lock()
	attachments := t.attachments
	t.attachments = map[uint64]*attachment{}
	t.mu.Unlock()
	for _, a := range attachments {
		a.communicator.Forget()
	}
}

// groupID returns an id that depends on the name and the ranks. A hash replaces the end of a long
// id. At most half of the maximum length is used, which leaves room for the counter of nextID.
func groupID(name string, ranks []int) string {
	const maxBytes, prefixCharacters = symmem.MaxGroupID / 2, 64
	id := fmt.Sprintf("%s %v", name, ranks)
	if len(id) <= maxBytes {
		return id
	}
	return fmt.Sprintf("%.*s... %x", prefixCharacters, name, sha256.Sum256([]byte(id)))
}
