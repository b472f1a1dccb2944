package nccl

import "symmem/internal/dl"

// UniqueID identifies a communicator to be created (ncclUniqueId). It contains the address of
// the process that created it, so only ranks of the job should see it.
type UniqueID [128]byte

// Comm is one rank's handle of a communicator (ncclComm_t). When the communicator is destroyed, the
// handle and the handles of its windows become invalid.
type Comm uintptr

// UniqueID creates an ID. It is not collective: one rank calls it and sends the ID to the other
// ranks. That rank must stay alive until the others have created their communicators, because
// they connect to it.
func (l *Library) UniqueID() (UniqueID, error) {
	id := dl.NewCell(UniqueID{})
	err := l.call(getUniqueID, id.Address())
	return id.Take(), err
}

// CommInitRank creates this rank's communicator on the current device of the calling thread. It
// is collective and blocks, without a deadline, until all ranks have called it. It uses NCCL's
// default configuration and requires NCCL 2.23.4.
func (l *Library) CommInitRank(ranks, rank int, id UniqueID) (Comm, error) {
	// The older functions cannot be used, because they take the ID by value: depending on the
	// architecture, it is passed on the stack or by reference.
	ids, comm := dl.NewCell(id), l.cells.take()
	err := l.call(commInitRankScalable, dl.AddressOf(comm), uintptr(ranks), uintptr(rank), 1,
		ids.Address(), 0)
	ids.Take()
	return Comm(*comm), err
}

// CommAbort aborts a communicator and its work without waiting for other ranks, and frees it.
// Any thread may call it, even while another thread is blocked in a call on the communicator;
// the blocked call then fails.
func (l *Library) CommAbort(comm Comm) error { return l.call(commAbort, uintptr(comm)) }

// AsyncError returns the state of a communicator: nil, ErrInProgress during a nonblocking call,
// or an error such as ErrRemote after a peer has been lost. Any thread may call it. It does not
// block.
func (l *Library) AsyncError(comm Comm) error {
	state := dl.NewCell(Success)
	err := l.call(commGetAsyncError, uintptr(comm), state.Address())
	if result := state.Take(); err == nil && result != Success {
		return l.newError(commGetAsyncError, result)
	}
	return err
}

// Count returns the communicator's number of ranks.
func (l *Library) Count(comm Comm) (int, error) { return l.number(commCount, comm) }

// Device returns the ordinal of the communicator's device.
func (l *Library) Device(comm Comm) (int, error) { return l.number(commCuDevice, comm) }

// UserRank returns the caller's rank in the communicator.
func (l *Library) UserRank(comm Comm) (int, error) { return l.number(commUserRank, comm) }

func (l *Library) number(f function, comm Comm) (int, error) {
	value := dl.NewCell(int32(0))
	err := l.call(f, uintptr(comm), value.Address())
	return int(value.Take()), err
}

// hostImmediate declares that a scalar is in host memory and is read during the call
// (ncclScalarHostImmediate).
const hostImmediate = 1

// CreatePreMulSum creates a reduction that multiplies this rank's elements by a factor before it
// adds them. The reduction can be used only with the given communicator and type. The low bytes
// of bits hold the factor as an element of the type. CreatePreMulSum is not collective.
// DestroyReduceOp frees the reduction.
func (l *Library) CreatePreMulSum(bits uint64, t DataType, comm Comm) (ReduceOp, error) {
	op, scalar := dl.NewCell(ReduceOp(0)), dl.NewCell(bits)
	err := l.call(createPreMulSum, op.Address(), scalar.Address(), uintptr(t), hostImmediate,
		uintptr(comm))
	scalar.Take()
	return op.Take(), err
}

// DestroyReduceOp frees a created reduction. Calls that have already been made with it are not
// affected.
func (l *Library) DestroyReduceOp(op ReduceOp, comm Comm) error {
	return l.call(redOpDestroy, uintptr(op), uintptr(comm))
}

// suspendMemory makes CommSuspend release memory (NCCL_SUSPEND_MEM).
const suspendMemory = 1

// CommSuspend releases the communicator's device memory until CommResume. It is collective. No
// work of the communicator may be running.
func (l *Library) CommSuspend(comm Comm) error {
	if err := l.missing(commSuspend); err != nil {
		return err
	}
	return l.call(commSuspend, uintptr(comm), suspendMemory)
}

// CommResume reallocates the memory that CommSuspend released. It is collective.
func (l *Library) CommResume(comm Comm) error {
	if err := l.missing(commResume); err != nil {
		return err
	}
	return l.call(commResume, uintptr(comm))
}

// GroupStart opens a group on the calling thread. The caller must stay on this thread until
// GroupEnd, which executes all calls in the group together. Groups can be nested.
func (l *Library) GroupStart() error { return l.call(groupStart) }

// GroupEnd executes the calls in the group. It blocks if one of them blocks. If a registration
// in a group fails, the communicator is unusable and must be aborted.
func (l *Library) GroupEnd() error { return l.call(groupEnd) }

// Window is the handle of memory registered with all ranks of a communicator (ncclWindow_t), or 0.
type Window uintptr

// windowSymmetric declares that a given offset holds the same tensor on all ranks
// (NCCL_WIN_COLL_SYMMETRIC).
const windowSymmetric = 1

// WindowRegister registers memory with all ranks. All ranks must register their memory in the
// same order and with the same sizes. WindowRegister blocks without a deadline, usually for a
// few milliseconds. If the communicator does not support windows, WindowRegister returns 0
// without an error, and collectives use other kernels. With versions before NCCL 2.27.3, the
// error is a VersionError.
//
// Preconditions: the memory was allocated by cuMemCreate with an exportable handle type, is
// completely mapped, and does not overlap another window of the communicator. The thread has no
// open group, because NCCL would not return the window before GroupEnd. Unless NCCL is 2.30.7 or
// newer, no stream is being captured.
func (l *Library) WindowRegister(comm Comm, address uintptr, bytes int64) (Window, error) {
	if err := l.missing(commWindowRegister); err != nil {
		return 0, err
	}
	window := l.cells.take()
	err := l.call(commWindowRegister, uintptr(comm), address, uintptr(bytes),
		dl.AddressOf(window), windowSymmetric)
	return Window(*window), err
}

// WindowDeregister deregisters a window on this rank. It does not wait for other ranks or for
// streams. Deregistering window 0 does nothing.
//
// Preconditions: no rank has pending work that uses the window; all ranks deregister their
// windows in the same order.
func (l *Library) WindowDeregister(comm Comm, window Window) error {
	if window == 0 {
		return nil
	}
	if err := l.missing(commWindowDeregister); err != nil {
		return err
	}
	return l.call(commWindowDeregister, uintptr(comm), uintptr(window))
}
