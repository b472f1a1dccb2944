package driver

import "context"

// Backends may implement these optional interfaces. If a backend lacks an interface, the following
// holds instead:
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
//	TwoLevels      no call takes PathTwoLevel
//	Lister         the calls of a list are launched one by one
//	PeerMapper     Interop.PeerAddresses is refused
//	NativeWindow   Interop.WindowHandle is refused
//	MessageCounts  a MessageError lists no messages
//	Remarker       there are no remarks
//	EndObserver    only waiting ranks notice that a process has ended
//	LossListener   Close does not depend on the ends of other ranks
//	Inspector      the status page shows no waits, and Interop.StopWord returns 0
//	Timed          runs are not timed
//	Permuter       Group.Permute and Unpermute are refused
//	Values         Group.Agree and related calls are refused
//	Chooser        each rank has a separate status page
//	Suspendable*   the memory cannot be suspended; see suspend.go

// Availability is implemented by a Backend that does not work on every machine.
type Availability interface {
	// Available returns nil if the backend works on this machine, and otherwise the reason why not.
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

// Adopter is implemented by a Device that can use, but never destroys, streams and communicators of
// other libraries in the same process.
type Adopter interface {
	// AdoptStream returns a Stream for another library's CUstream, which must stay valid until the
	// Stream is closed. If handle is 0, it is CUDA's default stream.
	AdoptStream(handle uintptr) (AdoptedStream, error)
	// AdoptCommunicator adopts an ncclComm_t of the copy of NCCL that symmem uses.
	AdoptCommunicator(handle uintptr) (AdoptedCommunicator, error)
}

// Recorder is implemented by a Communicator that supports captures of adopted streams: the library
// that owns the stream records work in a graph, and replays it later.
type Recorder interface {
	// Record adds a collective to the capture that the stream's owner has begun. Ranks compare their
	// calls now, but not at replays. The windows and segments of the call stay mapped until the graph
	// and its executables are destroyed. After a window or segment is closed, replays produce no
	// result.
	Record(stream Stream, plan Plan) error
}

// InlineLauncher is implemented by a Communicator whose calls can run on the thread that waits for
// them in Synchronize.
type InlineLauncher interface {
	// LaunchInline is like Launch, but the caller must next call Synchronize on the same stream.
	// Synchronize may run the collective. In that case, the group's timeout and Config.Interrupted
	// limit the wait for other ranks. The context of Synchronize does not.
	LaunchInline(stream Stream, plan Plan) error
}

// LazyWindows is implemented by a Communicator that uses another library, such as NCCL, but creates
// the library's windows only on demand. Their creation takes milliseconds.
type LazyWindows interface {
	// UseWindows creates the library's windows over all registered segments. Later calls of Register
	// create such windows, too. UseWindows is collective. A second call does nothing. During a
	// capture, it returns ErrCapturing. Other errors make the communicator fail.
	UseWindows(ctx context.Context) error
}

// TwoLevels is implemented by a Communicator that supports PathTwoLevel, which divides a call into
// steps within machines and steps between machines.
type TwoLevels interface {
	// UseTwoLevels prepares the group for PathTwoLevel, like LazyWindows.UseWindows. If the group
	// does not support the path, it returns nil, and Offer.Refusal returns the reason.
	UseTwoLevels(ctx context.Context) error
}

// PeerMapper is implemented by a Window that maps all ranks' segments into this process.
type PeerMapper interface {
	// PeerAddresses returns the addresses of the ranks' segments in this process, by group rank. They
	// are valid until the window is deregistered. If any rank has not mapped all segments,
	// PeerAddresses returns ErrUnsupported on every rank.
	PeerAddresses() ([]uintptr, error)
}

// NativeWindow is implemented by a Window that may wrap a window of another library.
type NativeWindow interface {
	// Handle returns the ncclWindow_t, or ErrUnsupported if there is none.
	Handle() (uintptr, error)
}

// MessageCounts is implemented by a Communicator that counts this rank's messages.
type MessageCounts interface {
	// MessagesBefore returns the numbers of messages that this rank had sent and received before the
	// collective with the given number. The collective must not have completed. Each entry sets
	// either Sent or Received.
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
	// RanksLost is called during Close with the world ranks that have died. Close stops waiting for
	// them after a short time.
	RanksLost(ranks []int)
}

// Inspector is implemented by a Communicator that can describe its waits for peers.
type Inspector interface {
	// Inspect returns a description of the current waits. It does not wait.
	Inspect() Inspection
}

// Inspection describes the ranks of a group.
type Inspection struct {
	// Waits describes this rank's waits, oldest first. Short waits may be missing.
	Waits []LateWarning
	// Activity describes what other ranks are doing, by world rank. Ranks whose activity is not known
	// are missing.
	Activity map[int]string
	// StopWord is the address of a word of 32 bits, or 0 if there is none. The word becomes nonzero
	// when the communicator fails. Kernels on this rank can poll it.
	StopWord uintptr
}

// Timed is implemented by a Plan if the backend can measure the time of its runs.
type Timed interface {
	// SetMeter makes the backend report each run to m, except replays of graphs. Call it before the
	// plan is launched.
	SetMeter(m Meter)
}

// Chooser is implemented by a Store through which ranks can agree on a value.
type Chooser interface {
	// CompareSet is like Store.CompareSet.
	CompareSet(ctx context.Context, key string, expected, desired []byte) ([]byte, error)
}

// Permuter is implemented by a Device that supports Permutations. The methods queue work on a
// stream, like Stream.Copy. The caller has validated the argument.
type Permuter interface {
	Permute(s Stream, p *Permutation) error
	Unpermute(s Stream, p *Permutation) error
}
