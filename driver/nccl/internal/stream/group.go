package stream

import (
	"context"
	"slices"

	"symmem/driver"
)

// Group has the methods of a communicator that streams use. Streams compare groups by pointer.
type Group interface {
	// Await waits until a stream is idle, and checks whether the group has failed. ticket and
	// operation identify the stream's last collective.
	Await(ctx context.Context, stream *Stream, ticket uint64, operation driver.Operation) error
	// KernelsEnded returns a channel that is closed when the group has ended or failed and its
	// kernels have ended or been abandoned.
	KernelsEnded() <-chan struct{}
	// Reported returns the fault that a kernel of the group has reported, which also fails the
	// group, or nil.
	Reported() error
	// ReplayFault returns the fault of a group whose calls another library may replay, or nil.
	ReplayFault() error
	// EndedEarly returns the fault of a collective that has ended but cannot have succeeded, or nil.
	EndedEarly(ticket uint64) error
	// RecordEvent records the group's event on a stream now instead of later (Stream.RecordGroups).
	// If forget is set, the stream is being abandoned, and the group drops the event, so that
	// nothing waits for the stream. The stream's lock is held, so RecordEvent must not wait for
	// other ranks.
	RecordEvent(stream *Stream, forget bool) error
}

// launchers lists the groups with kernels on a stream. The slice is replaced, never modified, so a
// copy of its header remains valid without Stream.Mu.
type launchers struct{ groups []Group } // guarded by Stream.Mu

// AddGroup adds a group that launches kernels on the stream. The caller must hold Stream.Mu.
func (l *launchers) AddGroup(g Group) {
	if slices.Contains(l.groups, g) {
		return
	}
	l.groups = append(slices.DeleteFunc(slices.Clone(l.groups), kernelsEnded), g)
}

// kernelsEnded reports whether a group can launch no more kernels. A group that is being closed can
// still launch, and then records its event on the stream of its previous launch.
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

// Note records a collective or message before it is queued. The caller must hold Stream.Mu.
func (c *lastCall) Note(g Group, ticket uint64, operation driver.Operation) {
	c.group, c.ticket, c.operation = g, ticket, operation
}
