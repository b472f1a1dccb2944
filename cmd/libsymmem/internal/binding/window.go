package binding

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"symmem"
)

// windows implements the functions in symmem.h that register memory. A window is memory that is
// registered with a group. In this file, handle is the handle of a group.
type windows struct{ session *session }

// ScopeEnd registers the new memory of all pools that a group's ranks share. It returns the value
// that Counters.Pending had before. There is no new memory while the counter keeps this value.
func (ws *windows) ScopeEnd(handle uint64, stream uintptr) (pendingCount int64, err error) {
	r, g, err := ws.session.group(handle)
	if err != nil {
		return 0, err
	}

	// Read the counter first: memory that is allocated during the loop then changes it.
	pendingCount = ws.session.counters.Pending.Load()
	for _, p := range ws.session.poolTable.ownedBy(r) {
		if !g.sharesPool(p) {
			continue
		}

		if err := r.register(g, p, stream); err != nil {
			return 0, err
		}
	}

	return pendingCount, nil
}

// RegisterPending registers the new memory of one pool with a group.
func (ws *windows) RegisterPending(handle uint64, poolNumber int, stream uintptr) error {
	r, g, err := ws.session.group(handle)
	if err != nil {
		return err
	}

	owner, p, err := ws.session.pool(poolNumber)
	if err != nil {
		return err
	}

	if owner != r {
		return fmt.Errorf("registering pool %d with group %s: they belong to different worlds: %w",
			poolNumber, g.ID(), symmem.ErrInvalid)
	}

	return r.register(g, p, stream)
}

// Attach attaches another library's communicator to a group, and registers all pools that the
// group's ranks share. It returns the handle of the attachment. For a communicator that is already
// attached, Attach only returns the same handle again. It is collective over the group.
func (ws *windows) Attach(handle uint64, comm uintptr, name string) (uint64, error) {
	r, g, err := ws.session.group(handle)
	if err != nil {
		return 0, err
	}

	for _, a := range r.groupTable.attachmentsOf(g) {
		isSame := a.address == comm && a.communicator.Name() == name
		if isSame {
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

	attachmentHandle := ws.session.lastHandle.Add(1)
	a := &attachment{
		handle: attachmentHandle, address: comm, communicator: communicator, group: g,
	}
	r.groupTable.attach(a)
	return a.handle, nil
}

// registerAll registers all pools that the group's ranks share with a communicator.
func (ws *windows) registerAll(r *rank, g *group, communicator *symmem.AdoptedCommunicator) error {
	for _, p := range ws.session.poolTable.ownedBy(r) {
		if !g.sharesPool(p) {
			continue
		}

		if err := p.flush(); err != nil {
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

// Detach ends an attachment, which it finds by the handle that Attach returned. It deregisters the
// communicator's windows, unless the owner has already destroyed the communicator.
func (ws *windows) Detach(attachmentHandle uint64, commExists bool) error {
	if _, err := ws.session.anyRank(); err != nil {
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

// IsSymmetric reports whether an address range is within one window of an open group.
func (ws *windows) IsSymmetric(handle uint64, bytes uint64, address uintptr) bool {
	r, g, err := ws.session.group(handle)
	if err != nil || bytes > maxBytes {
		return false
	}

	return r.rt.Interop().IsSymmetric(g.Group, address, int64(bytes))
}

// PeerAddresses returns the addresses of a range in the memory of all ranks of the group, by rank.
// The given address is that of this rank. The range must be within a window.
func (ws *windows) PeerAddresses(
	handle uint64, bytes uint64, address uintptr,
) ([]uintptr, error) {
	r, g, err := ws.session.group(handle)
	if err != nil {
		return nil, err
	}

	if bytes > maxBytes {
		return nil, fmt.Errorf("finding the addresses of %d bytes: the maximum is %d: %w", bytes,
			int64(maxBytes), symmem.ErrInvalid)
	}

	return r.rt.Interop().PeerAddresses(g.Group, address, int64(bytes))
}

// NCCLWindow holds the arguments of NCCL's device API for a range of addresses.
type NCCLWindow struct {
	Communicator uintptr // the ncclComm_t
	Window       uintptr // the ncclWindow_t
	Offset       uintptr // of the range in the window, in bytes
}

// NCCLWindow returns NCCL's handles for an address range, which must be within a window.
func (ws *windows) NCCLWindow(
	handle uint64, bytes uint64, address uintptr,
) (w NCCLWindow, err error) {
	r, g, err := ws.session.group(handle)
	if err != nil {
		return w, err
	}

	if bytes > maxBytes {
		return w, fmt.Errorf("finding the window of %d bytes: the maximum is %d: %w", bytes,
			int64(maxBytes), symmem.ErrInvalid)
	}

	w.Communicator = g.Handle()
	w.Window, w.Offset, err = r.rt.Interop().WindowHandle(g.Group, address, int64(bytes))
	return w, err
}

// Window holds a window's address range. Its memory layout is that of an entry in the result of
// symmem_windows.
type Window struct{ Address, Bytes int64 }

// Windows lists a group's windows in order of address.
func (ws *windows) Windows(handle uint64) ([]Window, error) {
	r, g, err := ws.session.group(handle)
	if err != nil {
		return nil, err
	}

	var all []Window
	for _, p := range ws.session.poolTable.ownedBy(r) {
		for s := range p.Segments() {
			if r.rt.Interop().IsSymmetric(g.Group, s.Address, s.Bytes) {
				all = append(all, Window{Address: int64(s.Address), Bytes: s.Bytes})
			}
		}
	}

	slices.SortFunc(all, func(a, b Window) int { return cmp.Compare(a.Address, b.Address) })
	return all, nil
}
