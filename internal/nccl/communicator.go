package nccl

import (
	"sync"

	"symmem/internal/dl"
)

// UniqueID identifies a new communicator (ncclUniqueId). One rank creates it and sends it to the
// others. Then all ranks call CommInitRank. An ID is a secret of the job, because it contains the
// network address of a process.
type UniqueID [128]byte

// Comm is one rank's handle of a communicator (ncclComm_t).
type Comm uintptr

// UniqueID creates the ID of a new communicator. This process must stay alive until all ranks have
// called CommInitRank.
func (l *Library) UniqueID() (UniqueID, error) {
	idCell := dl.NewCell(UniqueID{}) // Take reads and releases the cell.
	err := l.call(getUniqueID, idCell.Address())
	return idCell.Take(), err
}

// CommInitRank creates this rank's handle of a communicator, for the thread's current device. It
// blocks until all ranks have called it. It requires NCCL 2.23.4: the older ncclCommInitRank takes
// the ID by value, which package dl does not support.
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

// CommDestroy waits until the communicator's work has ended and all data was sent, and frees it.
// There is no deadline.
func (l *Library) CommDestroy(comm Comm) error { return l.call(commDestroy, uintptr(comm)) }

// AsyncError returns an error of a communicator's work, such as ErrRemote. During a nonblocking
// call, it returns ErrInProgress. Any thread can call it.
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

// getInt calls f, which stores a property of a communicator as a C int.
func (l *Library) getInt(f function, comm Comm) (int, error) {
	value := dl.NewCell(int32(0))
	err := l.call(f, uintptr(comm), value.Address())
	return int(value.Take()), err
}

// CreatePreMulSum creates a sum in which this rank's elements are multiplied by a factor. The
// lowest bytes of factorBits hold the factor, of type t. The caller must call DestroyReduceOp.
func (l *Library) CreatePreMulSum(factorBits uint64, t DataType, comm Comm) (ReduceOp, error) {
	const hostImmediate = 1 // ncclScalarHostImmediate: NCCL reads the factor during the call
	op := dl.NewCell(ReduceOp(0))
	factorCell := dl.NewCell(factorBits)
	err := l.call(createPreMulSum, op.Address(), factorCell.Address(), uintptr(t), hostImmediate,
		uintptr(comm))
	factorCell.Take() // only releases the memory
	return op.Take(), err
}

// DestroyReduceOp frees a reduction. Calls that are already queued remain valid.
func (l *Library) DestroyReduceOp(op ReduceOp, comm Comm) error {
	return l.call(redOpDestroy, uintptr(op), uintptr(comm))
}

const suspendMemory = 1 // NCCL_SUSPEND_MEM

// CommSuspend releases the device memory that NCCL has allocated for a communicator, until
// CommResume. All ranks must call it while no work is running.
func (l *Library) CommSuspend(comm Comm) error {
	return l.call(commSuspend, uintptr(comm), suspendMemory)
}

// CommResume undoes CommSuspend. All ranks must call it.
func (l *Library) CommResume(comm Comm) error {
	return l.call(commResume, uintptr(comm))
}

// GroupStart starts a group: NCCL delays the calls of this thread until GroupEnd. Groups can be
// nested.
func (l *Library) GroupStart() error { return l.call(groupStart) }

// GroupEnd executes the calls in the group. If one of them is a WindowRegister that fails, the
// caller must abort the communicator.
func (l *Library) GroupEnd() error { return l.call(groupEnd) }

// Window is a handle of memory that all ranks of a communicator have registered (ncclWindow_t).
type Window uintptr

const windowSymmetric = 1 // NCCL_WIN_COLL_SYMMETRIC

// WindowRegister registers memory, and blocks until all ranks have done so. It returns 0 without an
// error if the communicator does not support windows. Conditions:
//
//   - All ranks register windows in the same order and with the same sizes.
//   - The memory is a whole mapped allocation of cuMemCreate with an exportable handle type.
//   - The memory does not overlap another window of the communicator.
//   - The thread has no open group, which would delay the result until GroupEnd.
//   - With NCCL before 2.30.7, no stream is capturing.
func (l *Library) WindowRegister(comm Comm, address uintptr, bytes int64) (Window, error) {
	window := l.cells.take()
	err := l.call(commWindowRegister, uintptr(comm), address, uintptr(bytes),
		dl.AddressOf(window), windowSymmetric)
	return Window(*window), err
}

// WindowDeregister ends the registration of a window. It does nothing for window 0. All ranks must
// deregister windows in the same order, after all ranks have completed the work that uses them.
func (l *Library) WindowDeregister(comm Comm, window Window) error {
	if window == 0 {
		return nil
	}

	return l.call(commWindowDeregister, uintptr(comm), uintptr(window))
}

// cells allocates variables for handles. Unlike those of package dl, they are never reused or
// freed, because NCCL may write a handle after the call has returned.
type cells struct {
	mu     sync.Mutex
	blocks [][]uintptr // guarded by mu
	used   int         // in the last block; guarded by mu
}

const cellsPerBlock = 512

func (c *cells) take() *uintptr {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.blocks) == 0 || c.used == cellsPerBlock {
		c.blocks = append(c.blocks, make([]uintptr, cellsPerBlock))
		c.used = 0
	}

	lastBlock := c.blocks[len(c.blocks)-1]
	cell := &lastBlock[c.used]
	c.used++
	return cell
}
