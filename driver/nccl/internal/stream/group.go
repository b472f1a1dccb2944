package stream

import (
	"context"
	"slices"

	"symmem/driver"
)

// Group is a communicator. Streams compare groups by pointer.
type Group interface {
	// Await waits until a stream is idle or the group has failed. ticket (a number in the group's
	// order) and operation identify the stream's last collective.
	Await(ctx context.Context, stream *Stream, ticket uint64, operation driver.Operation) error
	// KernelsEnded returns a channel that is closed when the group's kernels have exited or been
	// abandoned. This happens after the group has failed or is closed.
	KernelsEnded() <-chan struct{}
	// KernelFault returns the fault that a kernel of the group has reported, or nil. If there is
	// such a fault, KernelFault also makes the group fail.
	KernelFault() error
	// ReplayFault returns the fault of a group whose calls another library may replay, or nil.
	ReplayFault() error
	// EndedEarly returns the group's fault if the collective with this ticket has completed but
	// cannot have succeeded.
	EndedEarly(ticket uint64) error
	// UserGroup returns the group that the user created. If this group is a level of a two-level
	// group, UserGroup returns the two-level group. Otherwise it returns this group.
	UserGroup() Group
	// RecordEvent records the group's event on a stream now instead of later (see
	// Stream.RecordGroups). If forget is set, the stream is being abandoned, and the group drops
	// the event instead. RecordEvent must not wait for other ranks, because the caller holds the
	// stream's lock.
	RecordEvent(stream *Stream, forget bool) error
}

// launchingGroups lists the groups that have kernels on a stream. The slice is replaced rather than
// modified, so that a copy remains valid without Stream.Mu.
type launchingGroups struct{ groups []Group } // guarded by Stream.Mu

// AddGroup adds a group that launches kernels on the stream. The caller must hold Stream.Mu.
func (l *launchingGroups) AddGroup(g Group) {
	if slices.Contains(l.groups, g) {
		return
	}
	l.groups = append(slices.DeleteFunc(slices.Clone(l.groups), haveKernelsEnded), g)
}

// haveKernelsEnded reports whether a group can no longer launch kernels. A group that is being
// closed can still do so.
func haveKernelsEnded(g Group) bool {
	select {
	case <-g.KernelsEnded():
		return true
	default:
		return false
	}
}

// lastCall is the latest collective or message on a stream, if group is not nil.
type lastCall struct {
	group     Group
	ticket    uint64
	operation driver.Operation
}

// SetLastCall records a collective or message before it is queued. The caller must hold Stream.Mu.
func (c *lastCall) SetLastCall(g Group, ticket uint64, operation driver.Operation) {
	c.group, c.ticket, c.operation = g, ticket, operation
}
