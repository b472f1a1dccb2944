package stream

import (
	"context"

	"symmem/driver"
)

// Group is a communicator. Streams compare groups by pointer.
type Group interface {
	// Await waits until a stream is idle or the group has failed. ticket (a number in the group's
	// order) and operation identify the stream's last collective.
	Await(ctx context.Context, stream *Stream, ticket uint64, operation driver.Operation) error
	// KernelsEnded is closed after the group has failed or is closed, and its kernels have exited
	// or been abandoned.
	KernelsEnded() <-chan struct{}
	// KernelFault returns the fault that a kernel has reported, or nil. A fault makes the group
	// fail.
	KernelFault() error
	// ReplayFault returns the fault of a group whose calls another library may replay, or nil.
	ReplayFault() error
	// CheckEndedEarly returns the group's fault if the collective with this ticket has completed but
	// cannot have succeeded.
	CheckEndedEarly(ticket uint64) error
	// UserGroup returns the group that the user created: the two-level group if this group is a
	// level of one, and otherwise this group.
	UserGroup() Group
	// RecordEvent records the group's event on a stream now (see Stream.RecordGroups), or drops the
	// event if isAbandoned is set. It must not wait for other ranks, because the caller holds the
	// stream's lock.
	RecordEvent(stream *Stream, isAbandoned bool) error
}
