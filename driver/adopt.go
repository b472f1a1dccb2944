package driver

import "context"

// AdoptedStream is a stream of another library, which may capture it at any time. Where the owner
// can wait for it without asking symmem, as on GPUs, Communicator.Launch returns what it refuses,
// also while the stream has other work; what fails later is told by the next Launch or Synchronize.
type AdoptedStream interface {
	Stream
	// Captured reports whether the owner, or symmem, is capturing the stream. While that is so only
	// Recorder.Record puts work into it. Events may be recorded, and mark what the stream was given
	// here before; Synchronize returns ErrCapturing. It may be asked during any capture.
	Captured() (bool, error)
	// Drop closes a stream that its owner may have destroyed already, so it makes no call on the
	// stream. It waits for the work queued on it here.
	Drop() error
}

// AdoptedCommunicator is a communicator of another library, in which symmem registers memory.
//
// One call at a time, and no collective of the owner's meanwhile.
type AdoptedCommunicator interface {
	// Size and Rank are the communicator's number of ranks and this rank's number.
	Size() int
	Rank() int
	// Exchange sends payload, of at most MaxPayload bytes, to every rank of the communicator and
	// returns everybody's: collective.
	Exchange(ctx context.Context, payload []byte) ([][]byte, error)
	// Register makes a window of a segment: collective, in one order on all ranks. When the context
	// ends first, or the library fails, the communicator is of no use any more: the owner ends it.
	Register(ctx context.Context, segment Segment) (Window, error)
}
