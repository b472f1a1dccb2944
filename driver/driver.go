package driver

import (
	"context"
	"time"
)

// Backend opens devices. It has no state.
type Backend interface {
	// Name returns the backend's name, such as "host".
	Name() string
	// Open opens this rank's device. Every rank calls it once, with the same Store. If Open fails,
	// it releases everything that it has acquired.
	Open(ctx context.Context, cfg Config) (Device, error)
}

// Config specifies a rank and its device.
type Config struct {
	Rank, Size int
	LocalRank  int // number on this rank's machine
	// Device is the number of the visible device, plus 1, or 0 for that of LocalRank.
	Device int
	Store  Store
	// Timeout limits each wait for a peer without another deadline. It is positive.
	Timeout time.Duration
	Late    Late
	// Scatter, if not 0, is the seed of random segment addresses for tests.
	Scatter uint64
	// Interrupted, if set, is called repeatedly during long waits, possibly with locks held. If it
	// returns an error, which must wrap ErrInterrupted, the wait ends and its group fails.
	Interrupted func() error
}

// Store is a key-value store that all ranks of the world share.
type Store interface {
	Set(ctx context.Context, key string, value []byte) error
	// Get waits until the key has a value.
	Get(ctx context.Context, key string) ([]byte, error)
	// Peek is like Get, but does not wait.
	Peek(ctx context.Context, key string) (value []byte, ok bool, err error)
	// CompareSet stores desired if the current value equals expected, and returns the value
	// afterwards. A missing key has an empty value.
	CompareSet(ctx context.Context, key string, expected, desired []byte) ([]byte, error)
	// ServedBy returns the world rank that serves the store, or -1 if unknown.
	ServedBy() int
}

// Info describes a device.
type Info struct {
	Backend, Name string
	Granularity   int64 // of segment sizes in bytes; a power of two
	// Addressable is set if the CPU can access device memory.
	Addressable bool
	// CheckIsFree is set if comparing calls across ranks needs no extra communication.
	CheckIsFree bool
}

// Device provides one rank's memory, streams and communicators.
type Device interface {
	Info() Info
	// NewArena reserves a range of addresses.
	NewArena(bytes int64) (Arena, error)
	NewStream() (Stream, error)
	NewEvent() (Event, error)
	// Connect joins a group. Every rank of the group calls it with the same ID and Ranks. After an
	// error, this rank has no communicator.
	Connect(ctx context.Context, group GroupConfig) (Communicator, error)
	// Close requires that all communicators, arenas and streams are closed.
	Close() error
}

// Arena is a reserved range of addresses.
type Arena interface {
	Address() uintptr
	// Map maps zeroed memory at a free offset. offset and bytes are multiples of Info.Granularity.
	// If Config.Scatter is set, Map chooses a random offset. It returns an OutOfMemoryError if the
	// device has too little memory.
	Map(offset, bytes int64) (Segment, error)
	// Keep releases all addresses, where nothing may be mapped, except the given number of bytes at
	// the start. The device may then be closed before the arena.
	Keep(bytes int64) error
	// Close releases the addresses. All segments must be unmapped.
	Close() error
}

// Segment is a physical allocation that is mapped as a whole.
type Segment interface {
	Address() uintptr
	Bytes() int64
	// Keep ends the peers' access and releases everything except the memory, which stays mapped
	// until Unmap. The segment must have no windows.
	Keep() error
	// Unmap releases the memory, which no window and no work may use.
	Unmap() error
}

// Event marks a point in a stream's work.
type Event interface {
	// Done reports whether the last recorded point has been reached. It is true before the first
	// Record.
	Done() bool
	// Synchronize waits until the last recorded point has been reached. If the stream failed before
	// it, every call returns the stream's error.
	Synchronize(ctx context.Context) error
}

// Stream is an ordered, asynchronous queue of work. An idle stream may run work immediately.
//
// A stream fails at the first error, and drops all work until Synchronize has returned the error. A
// dropped collective or message makes its communicator fail with a PriorError. An event recorded on
// a failed stream is done and has the error.
type Stream interface {
	Copy(dst, src uintptr, bytes int64) error
	Fill(dst uintptr, value byte, bytes int64) error
	// Host runs a function, which must not call symmem, on the host.
	Host(work func()) error
	// Record records an event after all queued work. A closed stream accepts it only while work is
	// queued, and then returns ErrClosed.
	Record(Event) error
	// Wait delays later work until the event's last recorded point, without a deadline. If earlier
	// work of that stream failed, this stream fails with the same error.
	Wait(Event) error
	// WaitIgnoringErrors is like Wait, but this stream does not fail. It is for work that reuses the
	// memory of the earlier work, but not its results.
	WaitIgnoringErrors(Event) error
	// Fail makes the stream fail, in stream order, with an error that the caller already knows.
	// Synchronize returns it once, but Close does not.
	Fail(cause error)
	// Synchronize waits until the stream is idle and returns the first error of its work, once.
	Synchronize(ctx context.Context) error
	// BeginCapture makes the stream record work instead of running it. Then Wait refers to the
	// event's point at the time of the call, and unlike in CUDA, does not add the event's stream to
	// the capture.
	BeginCapture() error
	EndCapture() (Graph, error)
	Capturing() bool
	// Close waits for queued work, for up to twice Config.Timeout.
	Close() error
}

// Graph is recorded work that can be run repeatedly.
type Graph interface {
	Launch(Stream) error
	// Close releases the graph. The memory that it uses must stay valid until then.
	Close() error
}
