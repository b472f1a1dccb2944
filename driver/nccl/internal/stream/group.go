package stream

import (
	"context"
	"slices"

	"symmem/driver"
)

// Group is a communicator as seen by streams. Streams compare groups by pointer.
type Group interface {
	// Await waits until a stream is idle, and checks whether the group has failed. ticket (a number
	// in the group's order) and operation identify the stream's last collective.
	Await(ctx context.Context, stream *Stream, ticket uint64, operation driver.Operation) error
	// KernelsEnded returns a channel that is closed once the group has failed or is closed and its
	// kernels have exited or been abandoned.
	KernelsEnded() <-chan struct{}
	// Reported returns the fault that a kernel of the group has reported, or nil. If there is such
	// a fault, Reported also makes the group fail.
	Reported() error
	// ReplayFault returns the fault of a group whose calls another library may replay, or nil.
	ReplayFault() error
	// EndedEarly returns the group's fault if the collective with the given ticket has completed but
	// cannot have succeeded, and nil in all other cases.
	EndedEarly(ticket uint64) error
	// Whole returns the group that the user created: the two-level group if the group is one of its
	// levels, and the group itself if it is not. Streams report a single fault for a two-level group
	// and its levels.
	Whole() Group
	// RecordEvent records the group's event on a stream now instead of later (see
	// Stream.RecordGroups). If forget is set, the stream is being abandoned, and the group instead
	// drops the event, so that no later call waits for the stream. RecordEvent must not wait for
	// other ranks, because the caller holds the stream's lock.
	RecordEvent(stream *Stream, forget bool) error
}

// launchers lists the groups that have kernels on a stream. The slice is replaced rather than
// modified, so that a copy of its header remains valid without Stream.Mu.
type launchers struct{ groups []Group } // guarded by Stream.Mu

// AddGroup adds a group that launches kernels on the stream. The caller must hold Stream.Mu.
func (l *launchers) AddGroup(g Group) {
	if slices.Contains(l.groups, g) {
		return
	}
	l.groups = append(slices.DeleteFunc(slices.Clone(l.groups), kernelsEnded), g)
}

// kernelsEnded reports whether a group can no longer launch kernels. A group that is being closed
// can still launch kernels, and then records its event on the stream of its previous launch.
func kernelsEnded(g Group) bool {
	select {
	case <-g.KernelsEnded():
		return true
	default:
		return false
	}
}

// lastCall is the latest collective or message on a stream. group is nil if there is none.
type lastCall struct {
	group     Group
	ticket    uint64
	operation driver.Operation
}

// SetLastCall records a collective or message before it is queued. The caller must hold Stream.Mu.
func (c *lastCall) SetLastCall(g Group, ticket uint64, operation driver.Operation) {
	c.group, c.ticket, c.operation = g, ticket, operation
}
