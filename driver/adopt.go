package driver

import "context"

// AdoptedStream is a stream that belongs to another library, its owner, which may capture it at any
// time. On GPUs, the owner can wait for the stream without calling symmem, so Communicator.Launch
// returns the error of a refused call immediately, even while the stream has other work. If a call
// fails after Launch, the next Launch or Synchronize returns the error.
type AdoptedStream interface {
	Stream
	// Captured reports whether the owner or symmem is capturing the stream. During a capture, only
	// Recorder.Record adds work to the stream. Events recorded then mark the work that symmem
	// queued before the capture, and Synchronize returns ErrCapturing. Captured may be called
	// during any capture.
	Captured() (bool, error)
	// Drop closes the stream without using its handle, for the case that the owner has already
	// destroyed it. Drop waits for the work that symmem queued on the stream.
	Drop() error
}

// AdoptedCommunicator is a communicator that belongs to another library, its owner, and with which
// symmem registers memory.
//
// Its methods must be called one at a time, and not while the owner runs a collective.
type AdoptedCommunicator interface {
	// Size returns the communicator's number of ranks.
	Size() int
	// Rank returns this rank's number in the communicator.
	Rank() int
	// Exchange sends payload, of at most MaxPayload bytes, to every rank of the communicator and
	// returns the payloads of all ranks. It is collective.
	Exchange(ctx context.Context, payload []byte) ([][]byte, error)
	// Register makes a window over a segment. It is collective, and all ranks must register segments
	// in the same order. If the context ends or the library fails, the communicator becomes unusable
	// and its owner must destroy it.
	Register(ctx context.Context, segment Segment) (Window, error)
}
