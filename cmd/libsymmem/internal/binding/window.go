package binding

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"symmem"
)

// windows implements the functions in symmem.h that register memory with groups. A window is a
// registered range of memory, which each rank of the group can access on all others. C callers pass
// a group by its handle, a number.
type windows struct{ session *session }

// ScopeEnd registers the new memory of all pools that the group's ranks share. It returns the prior
// value of Counters.Pending. While the counter keeps this value, there is no new memory.
func (ws *windows) ScopeEnd(handle uint64, stream uintptr) (pendingCount int64, err error) {
	r, g, err := ws.session.group(handle)
	if err != nil {
		return 0, err
	}

	// Read the counter first, because an allocation during the loop increases it.
	pendingCount = ws.session.counters.Pending.Load()
	for _, p := range ws.sharedPools(r, g) {
		if err := r.register(g, p, stream); err != nil {
			return 0, err
		}
	}

	return pendingCount, nil
}

// sharedPools returns the pools that all ranks of a group share, oldest first.
func (ws *windows) sharedPools(r *rank, g *group) []*pool {
	owned := ws.session.poolTable.ownedBy(r)
	return slices.DeleteFunc(owned, func(p *pool) bool { return !g.sharesPool(p) })
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

// Attach attaches another library's communicator to a group, and returns the attachment's handle.
// From then on, the group's memory is registered with the communicator too. Attach has no effect if
// the communicator is attached already, with the same name. All ranks of the group must call it.
func (ws *windows) Attach(handle uint64, comm uintptr, name string) (uint64, error) {
	r, g, err := ws.session.group(handle)
	if err != nil {
		return 0, err
	}

	for _, a := range r.groupTable.attachmentsOf(g) {
		isAttached := a.address == comm && a.communicator.Name() == name
		if isAttached {
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

	a := &attachment{
		handle: ws.session.lastHandle.Add(1), address: comm, communicator: communicator, group: g,
	}
	r.groupTable.attach(a)
	return a.handle, nil
}

// registerAll registers the pools that the group's ranks share with a communicator.
func (ws *windows) registerAll(r *rank, g *group, communicator *symmem.AdoptedCommunicator) error {
	for _, p := range ws.sharedPools(r, g) {
		if err := p.flush(); err != nil { // frees buffers whose frees were delayed
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

// Detach ends the attachment with the handle that Attach returned. If commExists is set, it
// deregisters the memory from the communicator.
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

// IsSymmetric reports whether the bytes at an address are within one window of an open group.
func (ws *windows) IsSymmetric(handle uint64, bytes uint64, address uintptr) bool {
	r, g, err := ws.session.group(handle)
	if err != nil || bytes > maxBytes {
		return false
	}

	return r.rt.Interop().IsSymmetric(g.Group, address, int64(bytes))
}

// PeerAddresses returns the address of each rank's memory that corresponds to the bytes at this
// rank's address, which must be within a window.
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

// NCCLWindow holds what NCCL's device API needs to access a range of memory.
type NCCLWindow struct {
	Communicator uintptr // the ncclComm_t
	Window       uintptr // the ncclWindow_t
	Offset       uintptr // of the range, in bytes
}

// NCCLWindow returns the NCCLWindow of the bytes at an address, which must be within a window.
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

// Window is a window's range of addresses, laid out like an entry of symmem_windows.
type Window struct{ Address, Bytes int64 }

// Windows returns a group's windows in order of address.
func (ws *windows) Windows(handle uint64) ([]Window, error) {
	r, g, err := ws.session.group(handle)
	if err != nil {
		return nil, err
	}

	var all []Window
	for _, p := range ws.session.poolTable.ownedBy(r) {
		for s := range p.Segments() {
			isWindow := r.rt.Interop().IsSymmetric(g.Group, s.Address, s.Bytes)
			if isWindow {
				all = append(all, Window{Address: int64(s.Address), Bytes: s.Bytes})
			}
		}
	}

	slices.SortFunc(all, func(a, b Window) int { return cmp.Compare(a.Address, b.Address) })
	return all, nil
}
