package driver

import "context"

// Optional interfaces of a backend's values. A caller that finds one missing does without:
//
//	interface      of             without it
//	Availability   Backend        the backend is available everywhere
//	RankLimit      Backend        a machine has room for any number of ranks
//	Numbered       Device         devices have no numbers
//	Versioned      Device         no library runs the collectives
//	Adopter        Device         streams and communicators of other libraries are refused
//	Native         Stream,        there is no handle to pass to other libraries
//	               Communicator
//	Recorder       Communicator   calls on adopted streams that capture are refused
//	LazyWindows    Communicator   registration makes all windows at once
//	MessageCounts  Communicator   a MessageError lists no messages
//	Remarker       Offer          there are no remarks
//	EndObserver    Communicator   ranks that wait find out about ended processes
//	Values         Communicator   Group.Agree and related calls are refused

// Availability is a Backend that does not work on every machine.
type Availability interface {
	// Available returns why the backend cannot work here, or nil. It opens nothing.
	Available() error
}

// RankLimit is implemented by a Backend that limits the number of ranks on a machine.
type RankLimit interface {
	// LocalRanks is how many ranks this machine has room for; 0 is any number.
	LocalRanks() (int, error)
}

// Numbered is a Device that has a number.
type Numbered interface {
	// Ordinal is the number of the device among those that the process sees, from 0.
	Ordinal() int
}

// Versioned is a Device whose collectives a library runs.
type Versioned interface {
	// Library is the name and the version of the library, such as "NCCL 2.28.9".
	Library() string
}

// Native is a Stream or a Communicator that stands for an object of another library.
type Native interface {
	// Handle is that object: a CUstream or an ncclComm_t. It is 0 where there is none, and from when
	// the value is closed.
	Handle() uintptr
}

// Adopter is implemented by a device that can share a process with other libraries: it uses streams
// and communicators that they have made. Adopted objects remain theirs and are never destroyed
// here.
type Adopter interface {
	// AdoptStream makes a Stream of one that another library has made, by its handle: a CUstream,
	// which is also a cudaStream_t. Handle 0 is CUDA's default stream. The owner keeps it until the
	// result is closed, which ends nothing but its use here.
	AdoptStream(handle uintptr) (AdoptedStream, error)
	// AdoptCommunicator adopts a communicator that another library has made, by its
	// handle: an ncclComm_t, of the same copy of NCCL.
	AdoptCommunicator(handle uintptr) (AdoptedCommunicator, error)
}

// Recorder is a Communicator that can put collectives into captures of adopted streams.
type Recorder interface {
	// Record adds a prepared collective to the capture that the owner of the stream has begun. At a
	// level that compares calls it is compared once; replays of the owner's graph are neither compared
	// nor counted, since the owner does not report them. Everything the call uses, windows and
	// segments included, stays mapped until the graph and its executables are gone, even if it is
	// freed or closed meanwhile; replays after that end without a result.
	Record(stream Stream, plan Plan) error
}

// LazyWindows is a Communicator on which registration alone makes no window of the library's, since
// calls can do without: the direct path needs none, and they cost milliseconds each.
type LazyWindows interface {
	// UseWindows makes the library's windows over what is registered, and over all that is
	// registered from then on, so that calls can take the window path. It is collective, and does
	// nothing the second time. A stream that captures gives ErrCapturing before anything happens;
	// after another error the communicator has failed.
	UseWindows(ctx context.Context) error
}

// MessageCounts is implemented by a Communicator that counts the messages of its rank.
type MessageCounts interface {
	// MessagesBefore lists what this rank has sent and received before it called a collective, whose
	// number counts from 1 and which is not done: for each pair and tag, with this rank's end alone.
	MessagesBefore(collective uint64) []MessageEnds
}

// Remarker is an Offer that knows more of its call than which paths it can take.
type Remarker interface {
	// Remark says in words what is worth knowing of how the call runs on a path that does not refuse
	// it, or nothing.
	Remark(path Path) string
}

// EndObserver is implemented by a Communicator that notices the end of its ranks' processes.
type EndObserver interface {
	// EndedRanks lists the world ranks whose processes have ended before they left the group. It waits
	// for nothing.
	EndedRanks() []int
}
