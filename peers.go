package symmem

import (
	"fmt"

	"symmem/driver"
)

// PeerAddresses returns each rank's address for its counterpart of this buffer, in group order.
// This process and kernels on its device can access these addresses. The caller must synchronize
// accesses between ranks, for example with Group.Barrier.
//
// All work that uses the addresses must be complete before the group or the pool is closed and,
// after Free, before Pool.Trim. The addresses must not be used while the pool is suspended.
//
// PeerAddresses does not communicate. It returns ErrInvalid if the buffer is not registered with
// the group, and ErrSuspended if the pool is suspended on this rank. If any rank cannot map the
// memory of another, all ranks return ErrUnsupported.
func (b Buffer) PeerAddresses(g *Group) ([]uintptr, error) {
	if b.memory.pool == nil {
		return nil, fmt.Errorf("addresses of the zero buffer: %w", ErrForeign)
	}

	return peerAddresses(g, b.Address(), b.Size())
}

func peerAddresses(g *Group, address uintptr, bytes int64) ([]uintptr, error) {
	entry, err := findUsableWindow(g, address, bytes, "addresses of peers")
	if err != nil {
		return nil, err
	}

	mapper, canMap := entry.window.(driver.PeerMapper)
	if !canMap {
		return nil, fmt.Errorf("addresses of peers in group %s: %w", g.id, ErrUnsupported)
	}

	addresses, err := mapper.PeerAddresses() // of each rank's segment, in a new slice
	if err != nil {
		return nil, fmt.Errorf("addresses of peers in group %s: %w", g.id, err)
	}

	offsetInSegment := address - uintptr(entry.segment.start)
	for rank := range addresses {
		addresses[rank] += offsetInSegment
	}

	return addresses, nil
}

// windowHandle returns the NCCL handle of the window that contains a range, and the range's offset
// in the window.
func windowHandle(g *Group, address uintptr, bytes int64) (handle, offset uintptr, err error) {
	entry, err := findUsableWindow(g, address, bytes, "NCCL's window")
	if err != nil {
		return 0, 0, err
	}

	native, isNative := entry.window.(driver.NativeWindow)
	if !isNative {
		return 0, 0, fmt.Errorf("NCCL's window in group %s: %w", g.id, ErrUnsupported)
	}

	handle, err = native.Handle()
	if err != nil {
		return 0, 0, fmt.Errorf("NCCL's window in group %s: %w", g.id, err)
	}

	return handle, address - uintptr(entry.segment.start), nil
}

// findUsableWindow returns the window that contains a range. It returns an error if there is none,
// or if the pool is closed or suspended. subject names the caller's result in error texts.
func findUsableWindow(
	g *Group, address uintptr, bytes int64, subject string,
) (*windowEntry, error) {
	if g == nil {
		return nil, invalid("%s: the group is nil", subject)
	}

	entry, isInWindow := g.windows.table.Load().findWindow(address, bytes)
	if !isInWindow {
		return nil, invalid("%d bytes at %#x are not registered with group %s: end a scope of the "+
			"group, or call Pool.Register", bytes, address, g.id)
	}

	if err := entry.pool.checkOpen(); err != nil {
		return nil, fmt.Errorf("%s in group %s: %w", subject, g.id, err)
	}

	return entry, nil
}
