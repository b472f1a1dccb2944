package binding

import (
	"context"
	"fmt"
	"slices"

	"symmem"
)

// attachment is a communicator of another library, such as PyTorch. All memory that is registered
// with its group is also registered with the communicator.
type attachment struct {
	handle       uint64 // the number by which C callers pass the attachment
	group        *group
	communicator *symmem.AdoptedCommunicator
	ncclComm     uintptr // the communicator's ncclComm_t
}

// Attach attaches comm, a communicator of another library, to a group, and returns the attachment's
// handle. Later calls with the same comm and name return the same handle. All ranks of the group
// must call it.
func (ws *windows) Attach(handle uint64, comm uintptr, name string) (uint64, error) {
	r, g, err := ws.session.group(handle)
	if err != nil {
		return 0, err
	}

	for _, a := range r.groupTable.attachmentsOf(g) {
		if a.ncclComm == comm && a.communicator.Name() == name {
			return a.handle, nil
		}
	}

	communicator, err := r.rt.Interop().AdoptCommunicator(comm, name, g.Group)
	if err != nil {
		return 0, err
	}

	if err := ws.registerAll(r, g, communicator); err != nil {
		communicator.Forget()
		return 0, err
	}

	added := &attachment{
		handle: ws.session.lastHandle.Add(1), group: g, communicator: communicator, ncclComm: comm,
	}
	r.groupTable.attach(added)
	return added.handle, nil
}

// registerAll registers the memory of a group's shared pools with a communicator.
func (ws *windows) registerAll(r *rank, g *group, communicator *symmem.AdoptedCommunicator) error {
	for _, p := range ws.sharedPools(r, g) {
		if err := p.freeRetired(); err != nil {
			return err
		}

		err := ws.session.runInterruptible("attaching", func(ctx context.Context) error {
			return communicator.Register(ctx, p.Pool)
		})
		if err != nil {
			return err
		}
	}

	return nil
}

// Detach removes an attachment. It deregisters the memory from the communicator if commExists is
// set. Otherwise, the communicator has been destroyed.
func (ws *windows) Detach(attachmentHandle uint64, commExists bool) error {
	if err := ws.session.checkOpen(); err != nil {
		return err
	}

	for _, r := range ws.session.ranks.allRanks() {
		a := r.groupTable.detach(attachmentHandle)
		if a == nil {
			continue
		}

		if commExists {
			return a.communicator.Detach()
		}

		a.communicator.Forget()
		return nil
	}

	return fmt.Errorf("attachment with handle %d: %w", attachmentHandle, symmem.ErrClosed)
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
	index := slices.Index(a.group.attachments, a)
	a.group.attachments = slices.Delete(a.group.attachments, index, index+1)
	return a
}

func (t *groupTable) attachmentsOf(g *group) []*attachment {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return slices.Clone(g.attachments)
}

// forgetAttachments forgets the communicators of all attachments of a rank that is closing.
func (t *groupTable) forgetAttachments() {
	t.mu.Lock()
	attachments := t.attachments
	t.attachments = map[uint64]*attachment{}
	t.mu.Unlock()
	for _, a := range attachments {
		a.communicator.Forget()
	}
}
