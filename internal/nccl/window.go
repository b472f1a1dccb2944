package nccl

import "symmem/internal/dl"

// Window is memory registered with all ranks of a communicator: ncclWindow_t. It is an address on
// the device or 0, and only compared.
type Window uintptr

// windowSymmetric, NCCL_WIN_COLL_SYMMETRIC, means that the same offset is the same tensor on all
// ranks.
const windowSymmetric = 1

// WindowRegister registers memory with all ranks. It is collective, in the same order and with the
// same size on every rank, and blocks without a deadline; a few milliseconds is normal.
// Window 0 without an error is legal: the communicator does not support windows, and its
// collectives take other kernels. It is refused with a VersionError below NCCL 2.27.3.
//
// Preconditions: the memory was made by cuMemCreate with a handle that can be exported, is mapped
// whole, and no other window of the communicator overlaps it; the thread has no group open (the
// window would be known only after GroupEnd); no stream is captured unless NCCL is 2.30.7 or newer.
func (l *Library) WindowRegister(comm Comm, address uintptr, bytes int64) (Window, error) {
	if err := l.missing(commWindowRegister); err != nil {
		return 0, err
	}
	window := l.cells.take()
	err := l.call(commWindowRegister, uintptr(comm), address, uintptr(bytes),
		dl.AddressOf(window), windowSymmetric)
	return Window(*window), err
}

// WindowDeregister takes a window back on this rank: local, and waits for no rank and no stream.
// Window 0 is none and costs nothing.
//
// Preconditions: no rank has work under way on the window; all ranks deregister in one order.
func (l *Library) WindowDeregister(comm Comm, window Window) error {
	if window == 0 {
		return nil
	}
	if err := l.missing(commWindowDeregister); err != nil {
		return err
	}
	return l.call(commWindowDeregister, uintptr(comm), uintptr(window))
}
