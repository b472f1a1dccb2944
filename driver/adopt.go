package driver

import "context"

// AdoptedStream is a stream that belongs to another library, its owner, which may capture the
// stream at any time. On GPUs, the owner can wait for the stream without calling symmem, so
// Communicator.Launch returns the error of a refused call immediately, even if earlier work is
// still queued on the stream. If a call fails later, the next Launch or Synchronize returns the
// error.
type AdoptedStream interface {
	Stream
	// IsCapturing reports whether the stream is being captured, by the owner or by symmem. During a
	// capture, only Recorder.Record can add work to the stream, Synchronize returns ErrCapturing,
	// and a recorded event marks the work that symmem queued before the capture began. IsCapturing
	// may be called during any capture.
	IsCapturing() (bool, error)
	// Drop waits for the work that symmem queued on the stream and then closes the stream without
	// using its handle, because the owner may already have destroyed it.
	Drop() error
}

// AdoptedCommunicator is a communicator that belongs to another library, its owner. Symmem uses
// it to register memory.
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
	// Register makes a window over a segment. It is collective, and all ranks must register
	// segments in the same order. If the context ends or the library fails, the communicator
	// becomes unusable, and its owner must destroy it.
	Register(ctx context.Context, segment Segment) (Window, error)
}
