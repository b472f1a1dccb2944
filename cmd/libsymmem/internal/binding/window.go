package binding

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"symmem"
)

// The ranks of a group can register memory with the group. A registered range of addresses is a
// window: through it, each rank can access the memory of the others. Suppose that ranks 0 and 1
// share pool 2, and that each allocates 1 MiB in it:
//
//   - On each rank, the pool maps a segment for this. The segment is new memory: it is not yet
//     registered.
//   - Both ranks call RegisterPending for pool 2, or ScopeEnd for all pools. Now the segment is a
//     window.
//   - PyTorch may have an NCCL communicator of the same ranks. If it is attached to the group, the
//     segment is registered with the communicator as well.
//
// In this file, handle is the handle of a group, the number by which C passes the group.

// windows implements the functions in symmem.h that register memory.
type windows struct{ session *session }

// ScopeEnd registers the new memory of all pools that the group's ranks share.
//
// It returns the value that Counters.Pending had before. As long as the counter keeps this value,
// there is no new memory, and the caller need not call ScopeEnd again.
func (ws *windows) ScopeEnd(handle uint64, stream uintptr) (pendingCount int64, err error) {
	r, g, err := ws.session.group(handle)
	if err != nil {
		return 0, err
	}

	// Read the counter before the loop, because an allocation during the loop increases it.
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
	isNotShared := func(p *pool) bool { return !g.sharesPool(p) }
	return slices.DeleteFunc(ws.session.poolTable.ownedBy(r), isNotShared)
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

// Attach attaches another library's communicator to a group. It also registers the pools that the
// group's ranks share. All ranks of the group must call Attach.
//
// It returns the handle of the attachment. If the communicator is already attached with the same
// name, Attach only returns this handle.
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

// registerAll registers with a communicator the pools that the group's ranks share.
func (ws *windows) registerAll(r *rank, g *group, communicator *symmem.AdoptedCommunicator) error {
	for _, p := range ws.sharedPools(r, g) {
		if err := p.flush(); err != nil { // frees the buffers whose frees were delayed
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

// Detach ends the attachment with the handle that Attach returned. If the communicator still exists
// (commExists), Detach deregisters the memory from it. Otherwise, it only forgets the communicator.
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

// IsSymmetric reports whether a range of addresses is within one window of an open group.
func (ws *windows) IsSymmetric(handle uint64, bytes uint64, address uintptr) bool {
	r, g, err := ws.session.group(handle)
	if err != nil || bytes > maxBytes {
		return false
	}

	return r.rt.Interop().IsSymmetric(g.Group, address, int64(bytes))
}

// PeerAddresses returns where each rank of the group has a range of memory, by rank. On this rank,
// the range begins at the given address. It must be within a window.
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

// NCCLWindow holds arguments that NCCL's device API needs to access a range of memory.
type NCCLWindow struct {
	Communicator uintptr // the ncclComm_t
	Window       uintptr // the ncclWindow_t
	Offset       uintptr // of the range in the window, in bytes
}

// NCCLWindow returns the NCCLWindow for a range of addresses, which must be within a window.
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

// Window is the range of addresses of a window. In memory, it has the layout of an entry in the
// result of symmem_windows: two integers of 64 bits.
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
			isWindow := r.rt.Interop().IsSymmetric(g.Group, s.Address, s.Bytes)
			if isWindow {
				all = append(all, Window{Address: int64(s.Address), Bytes: s.Bytes})
			}
		}
	}

	slices.SortFunc(all, func(a, b Window) int { return cmp.Compare(a.Address, b.Address) })
	return all, nil
}
