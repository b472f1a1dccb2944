package driver

import "context"

// Backends may implement optional interfaces. Without an interface, symmem works as follows:
//
//	Availability   the backend works on every machine
//	RankLimit      a machine can run any number of ranks
//	Numbered       devices have no numbers
//	Versioned      reports name no library for collectives
//	Adopter        streams and communicators of other libraries are refused
//	Native         there is no handle to pass to other libraries
//	Recorder       calls on adopted streams are refused during a capture
//	InlineLauncher a thread of the backend waits for late peers
//	LazyWindows    Register creates windows of other libraries
//	TwoLevels      PathTwoLevel is unsupported
//	Lister         the calls of a list are launched one by one
//	PeerMapper     Interop.PeerAddresses is refused
//	NativeWindow   Interop.WindowHandle is refused
//	MessageCounts  a MessageError lists no messages
//	Remarker       explanations of calls have no remarks
//	EndObserver    only waiting ranks notice that a process has exited
//	LossListener   Device.Close does not learn about dead processes
//	Inspector      the status page shows no waits, and Interop.StopWord returns 0
//	Timed          runs are not timed
//	Permuter       Group.Permute and Unpermute are refused
//	Values         Group.Agree and related calls are refused (see values.go)
//	Suspendable*   memory cannot be suspended

// Availability is implemented by a Backend that does not work on every machine.
type Availability interface {
	// Available returns the reason why the backend does not work on this machine, or nil.
	Available() error
}

// RankLimit is implemented by a Backend that limits the ranks on a machine.
type RankLimit interface {
	// LocalRanks returns the maximum number of ranks on this machine, or 0 if there is no limit.
	LocalRanks() (int, error)
}

// Numbered is implemented by a Device that has a number.
type Numbered interface {
	// Ordinal returns the device's number, from 0, among the visible devices.
	Ordinal() int
}

// Versioned is implemented by a Device that runs collectives with another library.
type Versioned interface {
	// Library returns the library's name and version, such as "NCCL 2.28.9".
	Library() string
}

// Native is implemented by a Stream or Communicator that wraps an object of another library.
type Native interface {
	// Handle returns the CUstream or ncclComm_t, or 0 if there is none.
	Handle() uintptr
}

// Adopter is implemented by a Device that can use, but does not destroy, streams and communicators
// of other libraries in the same process.
type Adopter interface {
	// AdoptStream returns a Stream for another library's CUstream, which must stay valid until the
	// Stream is closed. The handle 0 is CUDA's default stream.
	AdoptStream(handle uintptr) (AdoptedStream, error)
	// AdoptCommunicator adopts an ncclComm_t. It must be from the copy of NCCL that symmem uses.
	AdoptCommunicator(handle uintptr) (AdoptedCommunicator, error)
}

// Recorder is implemented by a Communicator that supports calls on an adopted stream while the
// stream's owner captures a graph.
type Recorder interface {
	// Record adds a collective to the capture. Ranks compare their calls during Record, but not
	// during replays. Once a window or segment of the call is closed, replays produce no result.
	// The memory stays mapped until the graph and its CUgraphExecs are destroyed.
	Record(stream Stream, plan Plan) error
}

// InlineLauncher is implemented by a Communicator whose calls can run on the thread that waits for
// them in Synchronize.
type InlineLauncher interface {
	// LaunchInline is like Launch, but the caller must next call Synchronize on the same stream. If
	// Synchronize runs the collective, it ignores its context while it waits for other ranks. The
	// group's timeout and Config.Interrupted still end the wait.
	LaunchInline(stream Stream, plan Plan) error
}

// LazyWindows is implemented by a Communicator that creates windows of another library, such as
// NCCL, only on demand. Creating a window takes milliseconds.
type LazyWindows interface {
	// UseWindows creates the library's windows for all registered segments, and makes Register
	// create them from now on. It is collective. A second call does nothing. During a capture, it
	// returns ErrCapturing. Any other error makes the communicator fail.
	UseWindows(ctx context.Context) error
}

// TwoLevels is implemented by a Communicator that supports PathTwoLevel, which divides a call into
// steps within machines and steps between machines.
type TwoLevels interface {
	// UseTwoLevels prepares the group for PathTwoLevel. It is collective, and has the same rules
	// for captures and errors as LazyWindows.UseWindows. If the group does not support the path,
	// UseTwoLevels returns nil, and Offer.Refusal returns the reason.
	UseTwoLevels(ctx context.Context) error
}

// Lister is implemented by a Communicator that can run several calls as one.
type Lister interface {
	// List returns a plan that runs two or more plans in any order. Ranks compare them as one call.
	// If the plans cannot be combined, List returns ErrUnsupported on all ranks.
	List(plans []Plan) (Plan, error)
}

// PeerMapper is implemented by a Window that can map all ranks' segments into this process.
type PeerMapper interface {
	// PeerAddresses returns the addresses of the ranks' segments in this process, by group rank. They
	// are valid until Deregister. If any rank has not mapped all segments, PeerAddresses returns
	// ErrUnsupported on every rank.
	PeerAddresses() ([]uintptr, error)
}

// NativeWindow is implemented by a Window that may wrap a window of another library.
type NativeWindow interface {
	// Handle returns the ncclWindow_t, or ErrUnsupported if there is none.
	Handle() (uintptr, error)
}

// MessageCounts is implemented by a Communicator that counts this rank's messages.
type MessageCounts interface {
	// MessagesBefore counts the messages that this rank sent and received before the collective
	// with the given number, which has not completed. Each entry sets either Sent or Received.
	MessagesBefore(collective uint64) []MessageEnds
}

// Remarker is implemented by an Offer that can describe its call.
type Remarker interface {
	// Remark returns a remark for users about the call on a supported path, or "".
	Remark(path Path) string
}

// EndObserver is implemented by a Communicator that detects when a rank's process exits.
type EndObserver interface {
	// EndedRanks returns the world ranks whose processes exited without leaving the group.
	EndedRanks() []int
}

// LossListener is implemented by a Device whose Close can wait for other ranks.
type LossListener interface {
	// RanksLost is called during Close with the world ranks of dead processes. Close then soon
	// stops waiting for these ranks.
	RanksLost(ranks []int)
}

// Inspector is implemented by a Communicator that can describe its waits for peers.
type Inspector interface {
	// Inspect does not wait.
	Inspect() Inspection
}

// Inspection describes the ranks of a group.
type Inspection struct {
	Waits    []LateWarning  // this rank's waits, oldest first; short waits may be missing
	Activity map[int]string // known activities of other ranks, by world rank
	// StopWord is the address of a 32-bit word, or 0. Kernels on this rank can poll the word, which
	// becomes nonzero when the communicator fails.
	StopWord uintptr
}

// Timed is implemented by a Plan if the backend can measure the time of its runs.
type Timed interface {
	// SetMeter makes the backend report each run to m, except replays of graphs. Call SetMeter before
	// the plan is launched.
	SetMeter(m Meter)
}

// Permuter is implemented by a Device that supports Permutations. Its methods queue work on a
// stream. The caller has validated the Permutation.
type Permuter interface {
	Permute(s Stream, p *Permutation) error
	Unpermute(s Stream, p *Permutation) error
}

// SuspendableSegment is implemented by a Segment whose memory can be released while its addresses
// stay reserved. Unmap and Keep work on a suspended segment, too.
type SuspendableSegment interface {
	// PrepareSuspend returns an error if the memory cannot be released now. If save is set, it
	// copies the contents to host memory. They must not change until Suspend or Resume.
	PrepareSuspend(save bool) error
	// Suspend releases the memory after PrepareSuspend. The windows on this rank must be suspended.
	// No work may use the segment until Resume; on a GPU, such work destroys the context. A peer
	// that still maps the memory keeps it allocated.
	Suspend() error
	// Resume maps new memory at the same addresses with the saved contents, or zeros. On an
	// OutOfMemoryError, the segment stays suspended. Without a Suspend, Resume only discards the
	// saved contents.
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
// addresses stay reserved, so graphs stay valid. While suspended, only Exchange, Abort and Close
// work.
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
