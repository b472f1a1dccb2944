package nccl

import "symmem/internal/dl"

// To create a communicator, one rank calls UniqueID and sends the ID to the others. Then all ranks
// call CommInitRank.
//
// NCCL stores results through pointers. A dl.Cell provides memory for one call; its method Take
// returns the value and releases the memory. Memory from Library.cells is never freed, because NCCL
// may write handles after the call has returned.

// UniqueID identifies a new communicator (ncclUniqueId). Only the ranks of the job should see an
// ID, because it contains the network address of a process.
type UniqueID [128]byte

// Comm is one rank's handle of a communicator (ncclComm_t).
type Comm uintptr

// UniqueID creates the ID of a new communicator. This process must stay alive until all ranks have
// called CommInitRank.
func (l *Library) UniqueID() (UniqueID, error) {
	id := dl.NewCell(UniqueID{})
	err := l.call(getUniqueID, id.Address())
	return id.Take(), err
}

// CommInitRank joins a communicator with the thread's current device, and blocks until all ranks
// have called it. It requires NCCL 2.23.4, because the older ncclCommInitRank takes the ID by
// value, which package dl does not support.
func (l *Library) CommInitRank(ranks, rank int, id UniqueID) (Comm, error) {
	idCell := dl.NewCell(id)
	comm := l.cells.take()
	const (
		idCount       = 1
		defaultConfig = 0 // a NULL pointer
	)
	err := l.call(commInitRankScalable, dl.AddressOf(comm), uintptr(ranks), uintptr(rank), idCount,
		idCell.Address(), defaultConfig)
	idCell.Take() // only releases the memory
	return Comm(*comm), err
}

// CommAbort aborts and frees a communicator. Any thread can call it. Blocked calls of other threads
// fail.
func (l *Library) CommAbort(comm Comm) error { return l.call(commAbort, uintptr(comm)) }

// CommDestroy frees a communicator after its work has ended and all data was sent. The wait has no
// deadline.
func (l *Library) CommDestroy(comm Comm) error { return l.call(commDestroy, uintptr(comm)) }

// AsyncError returns the error of a communicator, such as ErrRemote, if any. It returns
// ErrInProgress during a nonblocking call. Any thread can call it.
func (l *Library) AsyncError(comm Comm) error {
	stateCell := dl.NewCell(Success)
	err := l.call(commGetAsyncError, uintptr(comm), stateCell.Address())
	state := stateCell.Take()
	if err != nil {
		return err
	}

	if state != Success {
		return l.newError(commGetAsyncError, state)
	}

	return nil
}

// Count returns the number of ranks.
func (l *Library) Count(comm Comm) (int, error) { return l.getInt(commCount, comm) }

// Device returns the number of the communicator's device.
func (l *Library) Device(comm Comm) (int, error) { return l.getInt(commCuDevice, comm) }

// UserRank returns the caller's rank in the communicator.
func (l *Library) UserRank(comm Comm) (int, error) { return l.getInt(commUserRank, comm) }

// getInt returns a property of a communicator, which f stores as a C int.
func (l *Library) getInt(f function, comm Comm) (int, error) {
	value := dl.NewCell(int32(0))
	err := l.call(f, uintptr(comm), value.Address())
	return int(value.Take()), err
}

// CreatePreMulSum creates a sum in which this rank's elements are multiplied by a factor.
// factorBits holds the factor as a value of type t, in the lowest bytes. The caller must call
// DestroyReduceOp.
func (l *Library) CreatePreMulSum(factorBits uint64, t DataType, comm Comm) (ReduceOp, error) {
	const hostImmediate = 1 // ncclScalarHostImmediate: NCCL reads the factor during the call
	op := dl.NewCell(ReduceOp(0))
	factor := dl.NewCell(factorBits)
	err := l.call(createPreMulSum, op.Address(), factor.Address(), uintptr(t), hostImmediate,
		uintptr(comm))
	factor.Take() // only releases the memory
	return op.Take(), err
}

// DestroyReduceOp frees a reduction. Queued calls may still use it.
func (l *Library) DestroyReduceOp(op ReduceOp, comm Comm) error {
	return l.call(redOpDestroy, uintptr(op), uintptr(comm))
}

const suspendMemory = 1 // NCCL_SUSPEND_MEM

// CommSuspend releases the device memory that NCCL has allocated for a communicator, until
// CommResume. All ranks must call it while no work is running.
func (l *Library) CommSuspend(comm Comm) error {
	if err := l.checkAvailable(commSuspend); err != nil {
		return err
	}

	return l.call(commSuspend, uintptr(comm), suspendMemory)
}

// CommResume undoes CommSuspend. All ranks must call it.
func (l *Library) CommResume(comm Comm) error {
	if err := l.checkAvailable(commResume); err != nil {
		return err
	}

	return l.call(commResume, uintptr(comm))
}

// GroupStart starts a group: NCCL delays the calls of this thread until GroupEnd. Groups can be
// nested.
func (l *Library) GroupStart() error { return l.call(groupStart) }

// GroupEnd executes the calls in the group. If one of them is a WindowRegister that fails, the
// caller must abort the communicator.
func (l *Library) GroupEnd() error { return l.call(groupEnd) }

// Window is a handle of memory registered with all ranks of a communicator (ncclWindow_t), or 0.
type Window uintptr

const windowSymmetric = 1 // NCCL_WIN_COLL_SYMMETRIC

// WindowRegister registers memory, and blocks until all ranks have done so. It returns 0 without an
// error if the communicator does not support windows. Conditions:
//
//   - All ranks register windows in the same order and with the same sizes.
//   - The memory is a whole mapped allocation of cuMemCreate with an exportable handle type.
//   - The memory does not overlap another window of the communicator.
//   - The thread has no open group, which would delay the result until GroupEnd.
//   - No stream is capturing, before NCCL 2.30.7.
func (l *Library) WindowRegister(comm Comm, address uintptr, bytes int64) (Window, error) {
	if err := l.checkAvailable(commWindowRegister); err != nil {
		return 0, err
	}

	window := l.cells.take()
	err := l.call(commWindowRegister, uintptr(comm), address, uintptr(bytes),
		dl.AddressOf(window), windowSymmetric)
	return Window(*window), err
}

// WindowDeregister ends the registration of a window, and ignores window 0. All ranks must
// deregister windows in the same order, after all ranks have completed the work that uses them.
func (l *Library) WindowDeregister(comm Comm, window Window) error {
	if window == 0 {
		return nil
	}

	if err := l.checkAvailable(commWindowDeregister); err != nil {
		return err
	}

	return l.call(commWindowDeregister, uintptr(comm), uintptr(window))
}
