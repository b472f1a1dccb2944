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

// nextPadNumber returns the number of the group's next checked pad, memory through which kernels
// signal each other. A signal has 8 bits for the number, which is never 0, so 1 follows 255.
func (g *group) nextPadNumber() uint32 {
	const maxNumber = 255
	index := g.padCount.Add(1) - 1
	return index%maxNumber + 1
}

// sharesPool reports whether all ranks of the group share the pool. Only memory of shared pools can
// be registered with the group.
func (g *group) sharesPool(p *pool) bool {
	sharingGroup := p.Domain()
	if sharingGroup == nil {
		return false // the pool belongs to this rank only
	}

	sharingRanks := sharingGroup.Ranks()
	for _, rank := range g.Ranks() {
		if !slices.Contains(sharingRanks, rank) {
			return false
		}
	}

	return true
}

// attachment is a communicator of another library, such as PyTorch, that uses a group's memory. All
// memory of the group is also registered with the communicator.
type attachment struct {
	handle       uint64  // the number by which C callers pass the attachment
	address      uintptr // of the other library's communicator
	communicator *symmem.AdoptedCommunicator
	group        *group
}

// groupTable holds the open groups of one rank, and their attachments.
type groupTable struct {
	owner    *rank
	watchers sync.WaitGroup // goroutines that wait for the end of each group

	mu          sync.RWMutex
	groups      map[uint64]*group      // by handle; guarded by mu
	attachments map[uint64]*attachment // by handle; guarded by mu
	openCounts  map[string]int         // groups opened so far, by groupID; guarded by mu
}

func (t *groupTable) init(owner *rank) {
	t.owner = owner
	t.groups = map[uint64]*group{}
	t.attachments = map[uint64]*attachment{}
	t.openCounts = map[string]int{}
}

// nextID returns a new group's id, such as "tp [0 1] #2" for the second group "tp" of ranks 0 and
// 1. The ranks get the same id if they open their groups in the same order.
func (t *groupTable) nextID(name string, ranks []int) string {
	id := groupID(name, ranks)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.openCounts[id]++
	return fmt.Sprintf("%s #%d", id, t.openCounts[id])
}

// groupID returns an id without its number, such as "tp [0 1]". A long id ends with a hash.
func groupID(name string, ranks []int) string {
	const (
		maxBytes          = symmem.MaxGroupID / 2 // leaves space for the number
		maxNameCharacters = 64                    // before a hash
	)
	id := fmt.Sprintf("%s %v", name, ranks)
	if len(id) <= maxBytes {
		return id
	}

	hash := sha256.Sum256([]byte(id))
	return fmt.Sprintf("%.*s... %x", maxNameCharacters, name, hash)
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
	s.groupIndex.add(added.handle, added)
	t.watchers.Go(func() { awaitEnd(g, s.counters) })
	s.counters.Pending.Add(1) // existing memory may have to be registered with the new group
	return added.handle
}

// awaitEnd updates the counters when a group fails and when it ends.
func awaitEnd(g *symmem.Group, counters *Counters) {
	select {
	case <-g.Failing():
		counters.Faults.Add(1)
		<-g.Ended()
	case <-g.Ended(): // without a failure
	}

	counters.Pending.Add(1)
	counters.Windows.Add(1)
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

func (t *groupTable) attach(a *attachment) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.attachments[a.handle] = a
	a.group.attachments = append(a.group.attachments, a)
}

// detach removes and returns an attachment. For an unknown handle, it returns nil.
func (t *groupTable) detach(handle uint64) *attachment {
	t.mu.Lock()
	defer t.mu.Unlock()
	a := t.attachments[handle]
	if a == nil {
		return nil
	}

	delete(t.attachments, handle)
	isSame := func(other *attachment) bool { return other == a }
	a.group.attachments = slices.DeleteFunc(a.group.attachments, isSame)
	return a
}

func (t *groupTable) attachmentsOf(g *group) []*attachment {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return slices.Clone(g.attachments)
}

// forgetAttachments forgets the communicators of all attachments, because the rank is closing. It
// does not update group.attachments.
func (t *groupTable) forgetAttachments() {
	t.mu.Lock()
	attachments := t.attachments
	t.attachments = map[uint64]*attachment{}
	t.mu.Unlock()
	for _, a := range attachments {
		a.communicator.Forget()
	}
}
