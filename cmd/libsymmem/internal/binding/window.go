package binding

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"symmem"
)

// windows implements the functions in symmem.h that register memory with groups. A window is a
// registered range of addresses. Each rank of the group can access the window's memory on all other
// ranks. C callers pass groups by numeric handles.
type windows struct{ session *session }

// ScopeEnd registers the new memory of all pools that the group's ranks share. As long as
// Counters.Pending is equal to the result, there is no new memory.
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

// Attach registers a group's memory, now and in future, with another library's communicator. It
// returns the handle of this attachment. A second call with the same communicator and name only
// returns the handle. All ranks of the group must call it.
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

// registerAll registers the memory of a group's shared pools with a communicator.
func (ws *windows) registerAll(r *rank, g *group, communicator *symmem.AdoptedCommunicator) error {
	for _, p := range ws.sharedPools(r, g) {
		if err := p.flush(); err != nil { // completes delayed frees
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

// Detach removes an attachment. It deregisters the memory if the communicator still exists.
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

// PeerAddresses returns the addresses, by rank, at which this rank can access the memory that
// corresponds to its own bytes at address. The bytes must be within one window.
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

// NCCLWindow identifies a range of memory for NCCL's device API.
type NCCLWindow struct {
	Communicator uintptr // the ncclComm_t
	Window       uintptr // the ncclWindow_t
	Offset       uintptr // of the range, in bytes
}

// NCCLWindow returns the NCCLWindow of the bytes at an address. They must be within one window.
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

// Window is a window's address range. It has the memory layout of an entry in the output of
// symmem_windows.
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
