package driver

import "context"

// AdoptedStream is a stream that belongs to another library, its owner. Launch returns the error of
// a refused call immediately, even if earlier work is still queued. The next Launch or Synchronize
// returns later errors.
type AdoptedStream interface {
	Stream
	// IsCapturing reports whether the owner or symmem captures the stream. During a capture, only
	// Recorder.Record can add work, Synchronize returns ErrCapturing, and a recorded event marks
	// earlier work of symmem.
	IsCapturing() (bool, error)
	// Drop waits for the work that symmem queued, and closes the stream without using its handle,
	// because the owner may already have destroyed it.
	Drop() error
}

// AdoptedCommunicator is a communicator that belongs to another library, its owner. Its methods
// must be called one at a time, and not while the owner runs a collective.
type AdoptedCommunicator interface {
	Size() int
	Rank() int
	// Exchange sends at most MaxPayload bytes to every rank and returns the payloads of all ranks.
	Exchange(ctx context.Context, payload []byte) ([][]byte, error)
	// Register makes a window over a segment. All ranks must use the same order. After an error,
	// the communicator is unusable.
	Register(ctx context.Context, segment Segment) (Window, error)
}
