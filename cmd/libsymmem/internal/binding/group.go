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

// group is an open symmem.Group of one rank, with additional state for the C interface.
type group struct {
	*symmem.Group
	owner       *rank
	handle      uint64        // by which C callers pass the group
	name        string        // as passed to OpenGroup; the ID is longer
	attachments []*attachment // guarded by groupTable.mu
	machines    int           // number of machines that have ranks of the group
	padCount    atomic.Uint32 // number of checked pads that were opened; see nextPadNumber
}

// nextPadNumber returns the number of the group's next checked pad. A number has 8 bits and is not
// 0, so calls return 1 to 255, and then 1 again.
func (g *group) nextPadNumber() uint32 {
	const maxNumber = 255
	index := g.padCount.Add(1) - 1
	return index%maxNumber + 1
}

// sharesPool reports whether all ranks of the group share the pool, so that its memory can be
// registered with the group.
func (g *group) sharesPool(p *pool) bool {
	domain := p.Domain() // the group of the ranks that share the pool
	if domain == nil {   // local memory, which no other rank can access
		return false
	}

	poolRanks := domain.Ranks()
	isOutside := func(rank int) bool { return !slices.Contains(poolRanks, rank) }
	return !slices.ContainsFunc(g.Ranks(), isOutside)
}

// attachment is a communicator of another library that uses a group's windows, which are memory
// registered with the group.
type attachment struct {
	handle       uint64  // by which C callers pass the attachment
	address      uintptr // of the other library's communicator
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
	t.groups = map[uint64]*group{}
	t.attachments = map[uint64]*attachment{}
	t.openCounts = map[string]int{}
}

// add adds a group and returns its new handle. It starts a goroutine that updates the Counters when
// the group fails or ends.
func (t *groupTable) add(g *symmem.Group, name string) uint64 {
	s := t.owner.session
	handle := s.lastHandle.Add(1)
	added := &group{
		Group: g, owner: t.owner, handle: handle, name: name,
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

		<-g.Ended() // a failed group ends later
		s.counters.Pending.Add(1)
		s.counters.Windows.Add(1)
	})
	s.counters.Pending.Add(1)
	return handle
}

func (t *groupTable) allGroups() []*group {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return slices.Collect(maps.Values(t.groups))
}

// nextID returns the id for a new group. It counts the groups that the same ranks open with the
// same name, and appends the count. For example, a second group has the id "tp [0 1] #2".
func (t *groupTable) nextID(name string, ranks []int) string {
	id := groupID(name, ranks)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.openCounts[id]++
	return fmt.Sprintf("%s #%d", id, t.openCounts[id])
}

// remove removes a group and its attachments, and forgets their communicators.
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
	a.group.attachments = slices.DeleteFunc(a.group.attachments, isDetached)
	return a
}

func (t *groupTable) attachmentsOf(g *group) []*attachment {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return slices.Clone(g.attachments)
}

// forgetAttachments removes all attachments and forgets their communicators.
func (t *groupTable) forgetAttachments() {
	t.mu.Lock()
	attachments := t.attachments
	t.attachments = map[uint64]*attachment{}
	t.mu.Unlock()
	for _, a := range attachments {
		a.communicator.Forget()
	}
}

// groupID returns an id that depends on the name and the ranks, such as "tp [0 1]". If that is too
// long, a hash replaces the end of the id.
func groupID(name string, ranks []int) string {
	const (
		maxBytes         = symmem.MaxGroupID / 2 // leaves room for the count that nextID appends
		prefixCharacters = 64
	)
	id := fmt.Sprintf("%s %v", name, ranks)
	if len(id) <= maxBytes {
		return id
	}

	hash := sha256.Sum256([]byte(id))
	return fmt.Sprintf("%.*s... %x", prefixCharacters, name, hash)
}
