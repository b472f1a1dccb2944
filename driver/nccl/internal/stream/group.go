package stream

import (
	"context"

	"symmem/driver"
)

// Group is the interface of a group to the streams that run its collectives. A group is identified
// by one pointer.
type Group interface {
	// Await waits until a stream is idle whose last collective is that of the given ticket, and looks
	// whether the ranks of the group have failed meanwhile.
	Await(ctx context.Context, on *Stream, ticket uint64, operation driver.Operation) error
	// KernelsEnded is closed when the group has failed or ended, and its kernels have, or are given
	// up.
	KernelsEnded() <-chan struct{}
	// Reported returns the fault that a kernel of the group has reported, if any, and fails the group.
	Reported() error
	// ReplayFault is why the group has failed, if another library may replay its calls, or nil.
	ReplayFault() error
	// EndedEarly is the fault of a collective that is done and cannot have gone well, or nil.
	EndedEarly(ticket uint64) error
	// RecordEvent has the group record its events on a stream now if it would do so later: see
	// Stream.RecordGroups. With forget nothing waits for what the stream has: it is given up. The
	// stream's lock is held, and no other rank is waited for.
	RecordEvent(on *Stream, forget bool) error
}
