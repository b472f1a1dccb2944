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

// Suppose that ranks 0 and 1 open a group with the name "tp":
//
//   - On both ranks, the group has the id "tp [0 1] #1". If they open another group with this name,
//     its id is "tp [0 1] #2".
//   - On each rank, the group has a handle, such as 7. C callers pass this number to functions.
//   - The ranks register memory with the group. Registered memory is called a window.
//   - Another library, such as PyTorch, may have a communicator of the same ranks. An attachment of
//     this communicator to the group makes symmem register the memory with it as well.

// group is an open symmem.Group of one rank, with additional state for the C interface.
type group struct {
	*symmem.Group
	owner       *rank // the rank of this process that has opened the group
	handle      uint64
	name        string        // such as "tp"
	attachments []*attachment // guarded by groupTable.mu
	machines    int           // number of machines that have ranks of the group
	padCount    atomic.Uint32 // number of checked pads that were opened
}

// nextPadNumber returns a number for the group's next checked pad. A checked pad is memory through
// which kernels signal each other. It contains its number, in 8 bits and never 0. So calls return 1
// to 255, and then 1 again.
func (g *group) nextPadNumber() uint32 {
	const maxNumber = 255
	index := g.padCount.Add(1) - 1
	return index%maxNumber + 1
}

// sharesPool reports whether all ranks of the group share the pool. Only then can its memory be
// registered with the group.
func (g *group) sharesPool(p *pool) bool {
	domain := p.Domain() // the group of the ranks that share the pool
	isLocal := domain == nil
	if isLocal {
		return false // no other rank can access the memory
	}

	poolRanks := domain.Ranks()
	isOutside := func(rank int) bool { return !slices.Contains(poolRanks, rank) }
	return !slices.ContainsFunc(g.Ranks(), isOutside)
}

// attachment is a communicator of another library that is attached to a group.
type attachment struct {
	handle       uint64  // by which C callers pass the attachment
	address      uintptr // of the other library's communicator
	communicator *symmem.AdoptedCommunicator
	group        *group
}

// groupTable holds the open groups of one rank, and their attachments.
type groupTable struct {
	owner    *rank
	watchers sync.WaitGroup // goroutines that run until their group ends

	mu          sync.RWMutex
	groups      map[uint64]*group      // by handle; guarded by mu
	attachments map[uint64]*attachment // by handle; guarded by mu
	openCounts  map[string]int         // number of groups opened so far, by groupID; guarded by mu
}

func (t *groupTable) init(owner *rank) {
	t.owner = owner
	t.groups = map[uint64]*group{}
	t.attachments = map[uint64]*attachment{}
	t.openCounts = map[string]int{}
}

// nextID returns the id for a new group, such as "tp [0 1] #2". It must be called in the same order
// on all ranks of the group.
func (t *groupTable) nextID(name string, ranks []int) string {
	id := groupID(name, ranks)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.openCounts[id]++
	return fmt.Sprintf("%s #%d", id, t.openCounts[id])
}

// groupID returns the first part of a group's id, such as "tp [0 1]". If that is too long, a hash
// replaces the end of it.
func groupID(name string, ranks []int) string {
	const (
		maxBytes         = symmem.MaxGroupID / 2 // leaves space for the second part, such as " #2"
		prefixCharacters = 64
	)
	id := fmt.Sprintf("%s %v", name, ranks)
	if len(id) <= maxBytes {
		return id
	}

	hash := sha256.Sum256([]byte(id))
	return fmt.Sprintf("%.*s... %x", prefixCharacters, name, hash)
}

// add adds a group and returns its new handle.
func (t *groupTable) add(g *symmem.Group, name string) uint64 {
	s := t.owner.session
	added := &group{
		Group: g, owner: t.owner, handle: s.lastHandle.Add(1), name: name,
		machines: g.Stats().Tuning.Machines,
	}
	t.mu.Lock()
	t.groups[added.handle] = added
	t.mu.Unlock()
	s.groupIndex.add(added.handle, added) // by which calls find the group
	t.watchers.Go(func() { countEnd(g, s.counters) })
	s.counters.Pending.Add(1) // there may be memory to register with the new group
	return added.handle
}

// countEnd waits until a group ends, and then updates the counters. If the group fails before it
// ends, it updates the counter of faults at once.
func countEnd(g *symmem.Group, counters *Counters) {
	select {
	case <-g.Failing():
		counters.Faults.Add(1)
	case <-g.Ended(): // the group was closed without a fault
	}

	<-g.Ended()
	counters.Pending.Add(1)
	counters.Windows.Add(1)
}

func (t *groupTable) allGroups() []*group {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return slices.Collect(maps.Values(t.groups))
}

// remove removes a group with its attachments, and makes symmem forget their communicators.
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

// attach adds an attachment to its group.
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

// forgetAttachments makes symmem forget the communicators of all attachments. It removes the
// attachments from the table, but not from their groups.
func (t *groupTable) forgetAttachments() {
	t.mu.Lock()
	attachments := t.attachments
	t.attachments = map[uint64]*attachment{}
	t.mu.Unlock()
	for _, a := range attachments {
		a.communicator.Forget()
	}
}
