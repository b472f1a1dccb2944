package nccl

import (
	"symmem/internal/dl"
)

// UniqueID names a communicator that is to be made: ncclUniqueId. It tells ranks where the process
// that made it listens, so it is a secret of the job.
type UniqueID [128]byte

// Comm is a communicator of one rank: ncclComm_t. States: open; then finalized (no new work) or
// aborted; then gone. Once it is gone its number, and those of its windows, mean nothing.
type Comm uintptr

// UniqueID makes an id. It is not collective: one rank calls it and hands the id to the others,
// and stays alive until all have made their communicator, which it serves for.
func (l *Library) UniqueID() (UniqueID, error) {
	id := dl.NewCell(UniqueID{})
	err := l.call(getUniqueID, id.Address())
	return id.Take(), err
}

// CommInitRank makes this rank's communicator on the current device of the calling thread. It is
// collective and blocks until all ranks have come, without a deadline. All that a configuration
// could say is left to NCCL. It needs NCCL 2.23.4.
func (l *Library) CommInitRank(ranks, rank int, id UniqueID) (Comm, error) {
	// The older functions take the id by value, on the stack or not as the processor has it.
	ids, comm := dl.NewCell(id), l.cells.take()
	err := l.call(commInitRankScalable, dl.AddressOf(comm), uintptr(ranks), uintptr(rank), 1,
		ids.Address(), 0)
	ids.Take()
	return Comm(*comm), err
}

// CommAbort ends a communicator and the work on it without waiting for other ranks, and gives it
// back. Any thread may call it, also while another one is blocked in a call on the communicator,
// which then fails.
func (l *Library) CommAbort(comm Comm) error { return l.call(commAbort, uintptr(comm)) }

// AsyncError is the state of a communicator: nil, ErrInProgress while a call that does not block is
// under way, ErrRemote when a peer is lost. Any thread may call it; it does not block.
func (l *Library) AsyncError(comm Comm) error {
	state := dl.NewCell(Success)
	err := l.call(commGetAsyncError, uintptr(comm), state.Address())
	if result := state.Take(); err == nil && result != Success {
		return l.newError(commGetAsyncError, result)
	}
	return err
}

// Count is the number of ranks.
func (l *Library) Count(comm Comm) (int, error) { return l.number(commCount, comm) }

// Device is the ordinal of the communicator's device.
func (l *Library) Device(comm Comm) (int, error) { return l.number(commCuDevice, comm) }

// UserRank is this rank's number.
func (l *Library) UserRank(comm Comm) (int, error) { return l.number(commUserRank, comm) }

func (l *Library) number(f function, comm Comm) (int, error) {
	value := dl.NewCell(int32(0))
	err := l.call(f, uintptr(comm), value.Address())
	return int(value.Take()), err
}

// GroupStart opens a group on the calling thread, which it keeps until GroupEnd: calls in between
// are held back and then done together. Groups nest.
func (l *Library) GroupStart() error { return l.call(groupStart) }

// GroupEnd does what was held back, and blocks as those calls do. A failed registration in a group
// leaves the communicator useless: it is aborted.
func (l *Library) GroupEnd() error { return l.call(groupEnd) }
