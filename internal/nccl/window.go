package nccl

import "symmem/internal/dl"

// Window is memory registered with all ranks of a communicator: ncclWindow_t. It is a device
// address or 0, and is only compared.
type Window uintptr

// windowSymmetric, NCCL_WIN_COLL_SYMMETRIC, declares that the same offset is the same tensor on all
// ranks.
const windowSymmetric = 1

// WindowRegister registers memory with all ranks. It is collective, in the same order and with the
// same size on every rank, and blocks without a deadline; it usually takes a few milliseconds.
// Window 0 without an error means that the communicator does not support windows; its collectives
// then use other kernels. Below NCCL 2.27.3 the error is a VersionError.
//
// Preconditions: the memory was allocated by cuMemCreate with an exportable handle type, is
// completely mapped, and does not overlap another window of the communicator; the thread has no
// open group (the window would be known only after GroupEnd); no stream is being captured unless
// NCCL is 2.30.7 or newer.
func (l *Library) WindowRegister(comm Comm, address uintptr, bytes int64) (Window, error) {
	if err := l.missing(commWindowRegister); err != nil {
		return 0, err
	}
	window := l.cells.take()
	err := l.call(commWindowRegister, uintptr(comm), address, uintptr(bytes),
		dl.AddressOf(window), windowSymmetric)
	return Window(*window), err
}

// WindowDeregister deregisters a window on this rank. It is local, and waits for no rank and no
// stream. Deregistering window 0 does nothing.
//
// Preconditions: no rank has pending work on the window; all ranks deregister in the same order.
func (l *Library) WindowDeregister(comm Comm, window Window) error {
	if window == 0 {
		return nil
	}
	if err := l.missing(commWindowDeregister); err != nil {
		return err
	}
	return l.call(commWindowDeregister, uintptr(comm), uintptr(window))
}
