package driver

import "context"

// SuspendableSegment is implemented by a Segment whose memory can be released temporarily. Its
// addresses stay reserved, and nothing else is mapped there.
//
// A segment is either mapped or suspended. Unmap and Keep work in both states.
type SuspendableSegment interface {
	// PrepareSuspend returns an error if the memory cannot be released now. If save is set,
	// PrepareSuspend copies the contents to host memory, and they must not change until Suspend or
	// Resume.
	PrepareSuspend(save bool) error
	// Suspend releases the memory. If a peer still maps the memory, it stays allocated until the
	// peer unmaps it. Until Resume, accessing the addresses is an error, which on GPUs destroys the
	// context.
	//
	// Preconditions: PrepareSuspend has succeeded; no work uses the segment; its windows on this
	// rank are suspended.
	Suspend() error
	// Resume maps new memory at the same addresses and fills it with the contents that
	// PrepareSuspend saved, or with zeros. If the device has too little memory, Resume returns an
	// OutOfMemoryError and the segment stays suspended. On a segment that is not suspended, Resume
	// only discards the saved contents.
	Resume() error
}

// SuspendableWindow is implemented by a Window that can be suspended along with its segments.
type SuspendableWindow interface {
	// PrepareSuspend returns an error if the window cannot be suspended now.
	PrepareSuspend() error
	// Suspend ends this rank's access to the segments of its peers. Their addresses stay reserved.
	Suspend() error
	// Resume restores this rank's access at the same addresses. It is collective over the window's
	// group, and an error is a fault of the group.
	//
	// Preconditions: every rank of the group has resumed the window's segment.
	Resume(ctx context.Context) error
}

// SuspendableCommunicator is implemented by a Communicator that can release its own memory.
//
// A communicator is either active or suspended. While it is suspended, the caller must not launch
// or register anything. Exchanges, Abort and Close work in both states.
type SuspendableCommunicator interface {
	// PrepareSuspend returns an error if the memory cannot be released now, for example because a
	// message has not been received.
	PrepareSuspend() error
	// Suspend releases the communicator's memory. It is collective. The addresses stay reserved, so
	// graphs stay valid. An error is a fault of the communicator.
	//
	// Preconditions: PrepareSuspend has succeeded on all ranks; no work of the communicator is queued
	// or running.
	Suspend(ctx context.Context) (Suspension, error)
	// Resume allocates the memory again. It is collective. If any rank has too little memory, all
	// ranks return an error, and the communicator stays suspended. Any other error is a fault of the
	// communicator.
	Resume(ctx context.Context) error
}

// Suspension describes the memory that one rank has released.
type Suspension struct {
	// Released is the number of bytes of device memory that this rank has released. It does not
	// include memory that peers allocated.
	Released int64 `json:"released"`
	// Kept describes which memory stays allocated, and why. It is empty if there is none.
	Kept []string `json:"kept,omitempty"`
}
