package driver

import "context"

// A backend's values may implement these optional interfaces:
//
//	interface      implemented by if it is not
//	Availability   Backend        the backend works on every machine
//	RankLimit      Backend        a machine can run any number of ranks
//	Numbered       Device         devices have no numbers
//	Versioned      Device         no other library runs the collectives
//	Adopter        Device         streams and communicators of other libraries are refused
//	Native         Stream,        there is no handle to pass to other libraries
//	               Communicator
//	Recorder       Communicator   calls on adopted streams during a capture are refused
//	InlineLauncher Communicator   a thread of the backend waits for late peers
//	LazyWindows    Communicator   Register creates the library's windows immediately
//	TwoLevels      Communicator   no call takes PathTwoLevel
//	Lister         Communicator   the calls of a list are launched one by one
//	PeerMapper     Window         Interop.PeerAddresses is refused
//	MessageCounts  Communicator   a MessageError lists no messages
//	Remarker       Offer          there are no remarks
//	EndObserver    Communicator   only waiting ranks notice that a process has ended
//	Inspector      Communicator   the live view shows no waits
//	Timed          Plan           runs are not timed
//	Values         Communicator   Group.Agree and related calls are refused
//	Chooser        Store          each rank has a separate live view
//	Suspendable…   Segment,       the memory cannot be suspended; see suspend.go
//	               Window,
//	               Communicator

// Availability is implemented by a Backend that does not work on every machine.
type Availability interface {
	// Available returns nil if the backend works on this machine, and otherwise an error with the
	// reason. It opens no device.
	Available() error
}

// RankLimit is implemented by a Backend that limits the number of ranks on a machine.
type RankLimit interface {
	// LocalRanks returns the number of ranks that this machine can run, or 0 if there is no limit.
	LocalRanks() (int, error)
}

// Numbered is implemented by a Device that has a number.
type Numbered interface {
	// Ordinal returns the device's number among those visible to the process, from 0.
	Ordinal() int
}

// Versioned is implemented by a Device whose collectives are run by another library.
type Versioned interface {
	// Library returns the library's name and version, such as "NCCL 2.28.9".
	Library() string
}

// Native is implemented by a Stream or a Communicator that wraps an object of another library.
type Native interface {
	// Handle returns the CUstream or ncclComm_t, or 0 if there is none or it has been closed.
	Handle() uintptr
}

// Adopter is implemented by a Device that can use streams and communicators created by other
// libraries in the same process. symmem never destroys these streams and communicators.
type Adopter interface {
	// AdoptStream returns a Stream for another library's stream. The handle is a CUstream (which is
	// the same as a cudaStream_t); 0 is CUDA's default stream. The owner must not destroy its
	// stream before the returned Stream is closed. Closing the returned Stream does not affect the
	// owner's stream.
	AdoptStream(handle uintptr) (AdoptedStream, error)
	// AdoptCommunicator adopts another library's communicator. The handle is an ncclComm_t that was
	// created by the copy of NCCL that symmem uses.
	AdoptCommunicator(handle uintptr) (AdoptedCommunicator, error)
}

// Recorder is implemented by a Communicator that can add collectives to captures of adopted
// streams.
type Recorder interface {
	// Record adds a prepared collective to the capture that the stream's owner has begun. If calls
	// are compared, the collective is compared once, when it is recorded. Replays are neither
	// compared nor counted, because the owner does not report them.
	//
	// Everything that the call uses, including windows and segments, stays mapped until the graph
	// and its executables are destroyed, even if it is freed or closed earlier. After that,
	// however, replays produce no result.
	Record(stream Stream, plan Plan) error
}

// InlineLauncher is implemented by a Communicator that can run a call on the thread that waits
// for the call.
type InlineLauncher interface {
	// LaunchInline is like Launch, for a caller that calls Synchronize on the same stream next. If
	// the collective has to wait for peers, Synchronize runs it on the calling thread, so that no
	// other thread has to be woken up. While it does so, Synchronize ignores its context; the wait
	// is limited by the group's timeout and Config.Interrupted instead.
	LaunchInline(stream Stream, plan Plan) error
}

// LazyWindows is implemented by a Communicator whose Register does not create the library's
// windows. Creating a window takes milliseconds, and the direct path needs none.
type LazyWindows interface {
	// UseWindows creates the library's windows over all segments that are registered now or later,
	// so that calls can use the window path. It is collective. A second call does nothing. While a
	// stream is being captured, UseWindows only returns ErrCapturing. Any other error makes the
	// communicator fail.
	UseWindows(ctx context.Context) error
}

// TwoLevels is implemented by a Communicator that, if its group spans several machines, can run
// calls on two levels: within machines and between them.
type TwoLevels interface {
	// UseTwoLevels prepares the group for PathTwoLevel. It is collective. If the group cannot run
	// calls on two levels, UseTwoLevels returns nil, and Offer.Refusal returns the reason. A second
	// call does nothing. While a stream is being captured, UseTwoLevels only returns ErrCapturing.
	// Any other error makes the communicator fail.
	UseTwoLevels(ctx context.Context) error
}

// PeerMapper is implemented by a Window that maps the segments of all ranks into this process.
type PeerMapper interface {
	// PeerAddresses returns the address of each rank's segment in this process, by group rank. The
	// addresses are valid until the window is deregistered. If any rank has not mapped all
	// segments, PeerAddresses returns ErrUnsupported on every rank, with the reason.
	PeerAddresses() ([]uintptr, error)
}

// MessageCounts is implemented by a Communicator that counts the messages of its rank.
type MessageCounts interface {
	// MessagesBefore returns how many messages this rank had sent and received when it called the
	// collective with the given number, counted from 1. That collective must not have completed
	// yet. The list has one entry for each peer, direction and tag, in which only this rank's value
	// (Sent or Received) is set.
	MessagesBefore(collective uint64) []MessageEnds
}

// Remarker is implemented by an Offer that can describe how its call runs on a path.
type Remarker interface {
	// Remark describes how the call would run on a path for which Refusal returns nil. It may
	// return "".
	Remark(path Path) string
}

// EndObserver is implemented by a Communicator that detects when the process of a rank exits.
type EndObserver interface {
	// EndedRanks lists the world ranks whose processes exited before they left the group. It does
	// not wait.
	EndedRanks() []int
}

// Inspector is implemented by a Communicator that can describe the waits of ranks.
type Inspector interface {
	// Inspect describes this rank's waits and the other ranks' activities. It does not wait.
	Inspect() Inspection
}

// Inspection describes the ranks of a group at a point in time.
type Inspection struct {
	// Waits describes this rank's waits for other ranks, oldest first. A wait may be missing during
	// its first few milliseconds, while it only polls.
	Waits []LateWarning
	// Activity describes the known activities of the group's other ranks, by world rank.
	Activity map[int]string
}

// Timed is implemented by a Plan whose runs the backend can time. A run begins when the collective
// reaches the head of its stream, so it includes the wait for other ranks.
type Timed interface {
	// SetMeter makes the backend report runs to m, except for graph replays. It must be called
	// before the plan is launched.
	SetMeter(m Meter)
}

// Chooser is implemented by a Store through which ranks can agree on a value.
type Chooser interface {
	// CompareSet stores desired if the key's current value is expected. A key that has not been
	// written counts as empty. CompareSet returns the key's value after the call.
	CompareSet(ctx context.Context, key string, expected, desired []byte) ([]byte, error)
}
