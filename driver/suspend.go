package driver

import "context"

// SuspendableSegment is implemented by a Segment whose memory can be released while its addresses
// stay reserved.
type SuspendableSegment interface {
	// PrepareSuspend returns an error if the memory cannot be released now. If save is set, it
	// copies the contents to host memory.
	PrepareSuspend(save bool) error
	// Suspend releases the memory after a successful PrepareSuspend. The windows on this rank must
	// be suspended, and no work may use the segment until Resume.
	Suspend() error
	// Resume maps new memory at the same addresses with the saved contents, or zeros. On an
	// OutOfMemoryError, the segment stays suspended.
	Resume() error
}

// SuspendableWindow is implemented by a Window that can be suspended with its segments.
type SuspendableWindow interface {
	PrepareSuspend() error
	// Suspend ends this rank's access to its peers' segments. The addresses stay reserved.
	Suspend() error
	// Resume restores the access at the same addresses. It is collective, and every rank must have
	// resumed the segment. An error makes the group fail.
	Resume(ctx context.Context) error
}

// SuspendableCommunicator is implemented by a Communicator that can release its memory. While it is
// suspended, only Exchange, Abort and Close work.
type SuspendableCommunicator interface {
	// PrepareSuspend returns an error if the memory cannot be released now, for example because a
	// message has not been received.
	PrepareSuspend() error
	// Suspend releases the memory, but not its addresses. It is collective. PrepareSuspend must
	// have succeeded on all ranks, and no work may be queued or running. An error makes the
	// communicator fail.
	Suspend(ctx context.Context) (Suspension, error)
	// Resume allocates the memory again. It is collective. If any rank has too little memory, all
	// ranks return an error, and the communicator stays suspended. Other errors make it fail.
	Resume(ctx context.Context) error
}

// Suspension describes the memory that one rank has released.
type Suspension struct {
	Released int64 `json:"released"` // in bytes of device memory
	// Kept describes which memory stays allocated, and why.
	Kept []string `json:"kept,omitempty"`
}
