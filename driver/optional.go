package driver

import "context"

// Backends may implement optional interfaces. This table shows the behavior without each of them:
//
//	Availability   the backend works on every machine
//	RankLimit      a machine can run any number of ranks
//	Numbered       devices have no numbers
//	Versioned      no other library runs the collectives
//	Adopter        streams and communicators of other libraries are refused
//	Native         there is no handle to pass to other libraries
//	Recorder       calls on adopted streams are refused during a capture
//	InlineLauncher a thread of the backend waits for late peers
//	LazyWindows    Register creates the library's windows
//	TwoLevels      PathTwoLevel is unsupported
//	Lister         the calls of a list are launched one by one
//	PeerMapper     Interop.PeerAddresses is refused
//	NativeWindow   Interop.WindowHandle is refused
//	MessageCounts  a MessageError lists no messages
//	Remarker       calls have no remarks
//	EndObserver    only waiting ranks notice that a process has exited
//	LossListener   Close waits for no other ranks
//	Inspector      the status page shows no waits, and Interop.StopWord returns 0
//	Timed          runs are not timed
//	Permuter       Group.Permute and Unpermute are refused
//	Values         Group.Agree and related calls are refused
//	Chooser        each rank has a separate status page
//	Suspendable*   memory cannot be suspended (several interfaces in suspend.go)

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

// Adopter is implemented by a Device that can use streams and communicators of other libraries in
// the same process. It does not destroy them.
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
	// Record adds a collective to the capture. Ranks compare their calls now, but not when the graph
	// is replayed. The call's windows and segments stay mapped until the graph and its CUgraphExecs
	// are destroyed. After a window or segment is closed, replays produce no result.
	Record(stream Stream, plan Plan) error
}

// InlineLauncher is implemented by a Communicator whose calls can run on the thread that waits for
// them in Synchronize.
type InlineLauncher interface {
	// LaunchInline is like Launch, but the caller must next call Synchronize on the same stream. If
	// Synchronize runs the collective, its wait for other ranks is limited by the group's timeout and
	// Config.Interrupted, but not by its context.
	LaunchInline(stream Stream, plan Plan) error
}

// LazyWindows is implemented by a Communicator that creates the windows of another library, such as
// NCCL, only on demand, because creating a window takes milliseconds.
type LazyWindows interface {
	// UseWindows makes Register create the library's windows from now on, and creates them for all
	// registered segments. It is collective, and a second call does nothing. During a capture, it
	// returns ErrCapturing. Other errors make the communicator fail.
	UseWindows(ctx context.Context) error
}

// TwoLevels is implemented by a Communicator that supports PathTwoLevel, which divides a call into
// steps within machines and steps between machines.
type TwoLevels interface {
	// UseTwoLevels prepares the group for PathTwoLevel. It is collective, and has the same rules for
	// captures and errors as LazyWindows.UseWindows. In a group without support for the path, it
	// returns nil, and Offer.Refusal returns the reason.
	UseTwoLevels(ctx context.Context) error
}

// PeerMapper is implemented by a Window that maps all ranks' segments into this process.
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
	// MessagesBefore counts the messages that this rank sent and received before the collective with
	// the given number, which must not have completed. Each entry sets either Sent or Received.
	MessagesBefore(collective uint64) []MessageEnds
}

// Remarker is implemented by an Offer that can describe its call.
type Remarker interface {
	// Remark returns a remark for users about the call on a supported path, or "".
	Remark(path Path) string
}

// EndObserver is implemented by a Communicator that detects when a rank's process exits.
type EndObserver interface {
	// EndedRanks returns the world ranks whose processes exited before they left the group.
	EndedRanks() []int
}

// LossListener is implemented by a Device whose Close can wait for other ranks.
type LossListener interface {
	// RanksLost is called during Close with the world ranks of dead processes. Close stops waiting for
	// these ranks after a short time.
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

// Chooser is implemented by a Store through which ranks can agree on a value.
type Chooser interface {
	// CompareSet is like Store.CompareSet.
	CompareSet(ctx context.Context, key string, expected, desired []byte) ([]byte, error)
}

// Permuter is implemented by a Device that supports Permutations. Its methods queue work on a
// stream. The caller has validated the Permutation.
type Permuter interface {
	Permute(s Stream, p *Permutation) error
	Unpermute(s Stream, p *Permutation) error
}
