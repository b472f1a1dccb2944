package symmem

import (
	"fmt"

	"symmem/driver"
)

// PeerAddresses returns the addresses of the buffer on every rank of a group, in group order, for
// this process and kernels on its device. The caller must synchronize accesses between ranks, for
// example with Group.Barrier.
//
// The addresses are valid until the group or the pool is closed, or the buffer is freed and
// Pool.Trim unmaps its segment; work that uses them must be complete by then. They must not be used
// while the pool is suspended.
//
// PeerAddresses does not communicate. It returns ErrInvalid if the buffer is not registered with
// the group, ErrSuspended if the pool is suspended on this rank, and ErrUnsupported on all ranks if
// some ranks cannot map each other's memory.
func (b Buffer) PeerAddresses(g *Group) ([]uintptr, error) {
	if b.memory.pool == nil {
		return nil, fmt.Errorf("addresses of the zero buffer: %w", ErrForeign)
	}

	return peerAddresses(g, b.Address(), b.Size())
}

// findUsable returns an address range's window. Its errors begin with subject.
func findUsable(g *Group, address uintptr, bytes int64, subject string) (*windowEntry, error) {
	if g == nil {
		return nil, invalid("%s: the group is nil", subject)
	}

	entry, ok := g.windows.table.Load().findWindow(address, bytes)
	if !ok {
		return nil, invalid("%d bytes at %#x are not registered with group %s: end a scope of the "+
			"group, or call Pool.Register", bytes, address, g.id)
	}

	if err := entry.pool.checkOpen(); err != nil {
		return nil, fmt.Errorf("%s in group %s: %w", subject, g.id, err)
	}

	return entry, nil
}

func windowHandle(g *Group, address uintptr, bytes int64) (handle, offset uintptr, err error) {
	entry, err := findUsable(g, address, bytes, "NCCL's window")
	if err != nil {
		return 0, 0, err
	}

	native, ok := entry.window.(driver.NativeWindow)
	if !ok {
		return 0, 0, fmt.Errorf("NCCL's window in group %s: %w", g.id, ErrUnsupported)
	}

	if handle, err = native.Handle(); err != nil {
		return 0, 0, fmt.Errorf("NCCL's window in group %s: %w", g.id, err)
	}

	return handle, address - uintptr(entry.segment.start), nil
}

func peerAddresses(g *Group, address uintptr, bytes int64) ([]uintptr, error) {
	entry, err := findUsable(g, address, bytes, "addresses of peers")
	if err != nil {
		return nil, err
	}

	mapper, ok := entry.window.(driver.PeerMapper)
	if !ok {
		return nil, fmt.Errorf("addresses of peers in group %s: %w", g.id, ErrUnsupported)
	}

	addresses, err := mapper.PeerAddresses()
	if err != nil {
		return nil, fmt.Errorf("addresses of peers in group %s: %w", g.id, err)
	}

	offset := address - uintptr(entry.segment.start)
	for r := range addresses {
		addresses[r] += offset
	}

	return addresses, nil
}
