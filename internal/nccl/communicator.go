package nccl

import "symmem/internal/dl"

// UniqueID identifies a communicator to be created: ncclUniqueId. It contains the address of the
// process that created it, so it is a secret of the job.
type UniqueID [128]byte

// Comm is a communicator of one rank: ncclComm_t. States: open; then finalized (no new work) or
// aborted; then destroyed. Once it is destroyed, its handle and those of its windows are invalid.
type Comm uintptr

// UniqueID creates an id. It is not collective: one rank calls it and sends the id to the others.
// That process must stay alive until all ranks have created their communicators, since it serves
// them.
func (l *Library) UniqueID() (UniqueID, error) {
	id := dl.NewCell(UniqueID{})
	err := l.call(getUniqueID, id.Address())
	return id.Take(), err
}

// CommInitRank creates this rank's communicator on the current device of the calling thread. It is
// collective and blocks until all ranks have called it, without a deadline. It uses NCCL's default
// configuration. It needs NCCL 2.23.4.
func (l *Library) CommInitRank(ranks, rank int, id UniqueID) (Comm, error) {
	// Older functions take the id by value, on the stack or by reference, depending on the
	// architecture.
	ids, comm := dl.NewCell(id), l.cells.take()
	err := l.call(commInitRankScalable, dl.AddressOf(comm), uintptr(ranks), uintptr(rank), 1,
		ids.Address(), 0)
	ids.Take()
	return Comm(*comm), err
}

// CommAbort aborts a communicator and its work without waiting for other ranks, and frees it. Any
// thread may call it, even while another thread is blocked in a call on the communicator, which
// then fails.
func (l *Library) CommAbort(comm Comm) error { return l.call(commAbort, uintptr(comm)) }

// AsyncError returns the state of a communicator: nil, ErrInProgress during a nonblocking call, or
// ErrRemote after a peer was lost. Any thread may call it; it does not block.
func (l *Library) AsyncError(comm Comm) error {
	state := dl.NewCell(Success)
	err := l.call(commGetAsyncError, uintptr(comm), state.Address())
	if result := state.Take(); err == nil && result != Success {
		return l.newError(commGetAsyncError, result)
	}
	return err
}

// Count returns the number of ranks.
func (l *Library) Count(comm Comm) (int, error) { return l.number(commCount, comm) }

// Device returns the ordinal of the communicator's device.
func (l *Library) Device(comm Comm) (int, error) { return l.number(commCuDevice, comm) }

// UserRank returns the rank of the caller.
func (l *Library) UserRank(comm Comm) (int, error) { return l.number(commUserRank, comm) }

func (l *Library) number(f function, comm Comm) (int, error) {
	value := dl.NewCell(int32(0))
	err := l.call(f, uintptr(comm), value.Address())
	return int(value.Take()), err
}

// GroupStart opens a group on the calling thread, which the caller keeps until GroupEnd. Calls in
// between are deferred and then executed together. Groups nest.
func (l *Library) GroupStart() error { return l.call(groupStart) }

// GroupEnd executes the deferred calls, and blocks like them. After a failed registration in a
// group the communicator is unusable and must be aborted.
func (l *Library) GroupEnd() error { return l.call(groupEnd) }

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
