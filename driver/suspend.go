package driver

import "context"

// SuspendableSegment is implemented by a Segment whose memory can be released while its addresses
// stay reserved. Unmap and Keep work on a suspended segment too.
type SuspendableSegment interface {
	// PrepareSuspend returns an error if the memory cannot be released now. If save is set, it
	// copies the contents, which must not change until Suspend or Resume, to host memory.
	PrepareSuspend(save bool) error
	// Suspend releases the memory, but a peer that still maps it keeps it allocated. PrepareSuspend
	// must have succeeded, the windows on this rank must be suspended, and no work may use the
	// segment. Accessing the addresses before Resume is an error, which on GPUs destroys the
	// context.
	Suspend() error
	// Resume maps new memory at the same addresses and fills it with the saved contents, or with
	// zeros. On an OutOfMemoryError, the segment stays suspended. On a segment that is not
	// suspended, Resume only discards the saved contents.
	Resume() error
}

// SuspendableWindow is implemented by a Window that can be suspended with its segments.
type SuspendableWindow interface {
	PrepareSuspend() error
	// Suspend ends this rank's access to its peers' segments. The addresses stay reserved.
	Suspend() error
	// Resume restores the access at the same addresses. It is collective, and every rank must have
	// resumed the segment. An error is a fault of the group.
	Resume(ctx context.Context) error
}

// SuspendableCommunicator is implemented by a Communicator that can release its memory. While it is
// suspended, the caller must not launch or register anything. Exchanges, Abort and Close still
// work.
type SuspendableCommunicator interface {
	// PrepareSuspend returns an error if the memory cannot be released now, for example because a
	// message has not been received.
	PrepareSuspend() error
	// Suspend releases the memory. It is collective. The addresses stay reserved, so graphs stay
	// valid. PrepareSuspend must have succeeded on all ranks, and no work may be queued or running.
	// An error is a fault of the communicator.
	Suspend(ctx context.Context) (Suspension, error)
	// Resume allocates the memory again. It is collective. If any rank has too little memory, all
	// ranks return an error, and the communicator stays suspended. Any other error is a fault of
	// the communicator.
	Resume(ctx context.Context) error
}

// Suspension describes the memory that one rank has released.
type Suspension struct {
	Released int64 `json:"released"` // in bytes of device memory
	// Kept describes which memory stays allocated, and why.
	Kept []string `json:"kept,omitempty"`
}
