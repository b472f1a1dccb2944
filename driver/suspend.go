package driver

import "context"

// SuspendableSegment is implemented by a Segment whose memory can be released for some time. Its
// addresses stay reserved, and nothing else is mapped there.
//
// A segment is mapped or suspended. Unmap and Keep work in both states.
type SuspendableSegment interface {
	// PrepareSuspend returns an error if the memory cannot be released now. If save is set, it copies
	// the contents to host memory. The contents must not change until Suspend or Resume.
	PrepareSuspend(save bool) error
	// Suspend releases the memory. Peers that still map it keep it allocated. Until Resume, an access
	// to the addresses is an error, which on GPUs ends the context.
	//
	// Preconditions: PrepareSuspend has succeeded; no work uses the segment; its windows on this rank
	// are suspended.
	Suspend() error
	// Resume maps new memory at the same addresses. The memory has the contents saved by
	// PrepareSuspend, or zeros. If the device has too little memory, Resume returns an
	// OutOfMemoryError, and the segment stays suspended. Resume of a mapped segment only drops the
	// saved contents.
	Resume() error
}

// SuspendableWindow is implemented by a Window that can follow its segments into suspension.
type SuspendableWindow interface {
	// PrepareSuspend returns an error if the window cannot be suspended now.
	PrepareSuspend() error
	// Suspend ends this rank's access to the segments of its peers. Their addresses stay reserved.
	Suspend() error
	// Resume restores the access at the same addresses. It is collective over the window's group,
	// and an error is a fault of the group.
	//
	// Preconditions: every rank of the group has resumed the window's segment.
	Resume(ctx context.Context) error
}

// SuspendableCommunicator is implemented by a Communicator that can release its own memory.
//
// A communicator is active or suspended. While it is suspended, the caller launches nothing and
// registers nothing. Exchanges, Abort and Close work in both states.
type SuspendableCommunicator interface {
	// PrepareSuspend returns an error if the memory cannot be released now, for example because a
	// message has not been received.
	PrepareSuspend() error
	// Suspend releases the communicator's memory. Addresses stay reserved, so graphs stay valid. It is
	// collective. An error is a fault of the communicator.
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
	// Released counts the bytes of device memory that this rank has released. Memory that peers
	// allocated is not included.
	Released int64 `json:"released"`
	// Kept describes memory that stays allocated, with the reason. It is empty if there is none.
	Kept []string `json:"kept,omitempty"`
}
