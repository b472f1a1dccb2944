package driver

import "context"

// SuspendableSegment is implemented by a Segment whose memory can be released while its addresses
// stay reserved. Unmap and Keep work on a suspended segment, too.
type SuspendableSegment interface {
	// PrepareSuspend returns an error if the memory cannot be released now. If save is set, it
	// copies the contents, which must not change until Suspend or Resume, to host memory.
	PrepareSuspend(save bool) error
	// Suspend releases the memory after PrepareSuspend. The windows on this rank must be suspended,
	// and no work may use the segment until Resume: on GPUs, that destroys the context. A peer that
	// still maps the memory keeps it allocated.
	Suspend() error
	// Resume maps new memory at the same addresses with the saved contents, or zeros. On an
	// OutOfMemoryError, the segment stays suspended. If it is not suspended, Resume only discards
	// the saved contents.
	Resume() error
}

// SuspendableWindow is implemented by a Window that can be suspended with its segments.
type SuspendableWindow interface {
	PrepareSuspend() error
	// Suspend ends this rank's access to its peers' segments, but keeps the addresses.
	Suspend() error
	// Resume restores the access after every rank has resumed the segment. It is collective. An
	// error makes the group fail.
	Resume(ctx context.Context) error
}

// SuspendableCommunicator is implemented by a Communicator that can release its memory. The
// addresses stay reserved, so graphs stay valid. While it is suspended, only Exchange, Abort and
// Close work.
type SuspendableCommunicator interface {
	// PrepareSuspend returns an error if the memory cannot be released now, for example because a
	// message has not been received.
	PrepareSuspend() error
	// Suspend releases the memory after PrepareSuspend on all ranks, while no work is queued or
	// running. It is collective. An error makes the communicator fail.
	Suspend(ctx context.Context) (Suspension, error)
	// Resume allocates the memory again. It is collective. If any rank has too little memory, all
	// ranks return an error, and the communicator stays suspended. Any other error makes the
	// communicator fail.
	Resume(ctx context.Context) error
}

// Suspension describes the memory that one rank has released.
type Suspension struct {
	Released int64 `json:"released"` // in bytes of device memory
	// Kept describes which memory stays allocated, and why.
	Kept []string `json:"kept,omitempty"`
}
