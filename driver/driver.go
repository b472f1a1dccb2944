package driver

import (
	"context"
	"time"
)

// Backend opens devices of one kind, such as GPUs.
type Backend interface {
	// Name returns the backend's name, such as "host".
	Name() string
	// Open opens this rank's device. Every rank calls Open once, with the same Store. If Open fails,
	// it releases everything that it has acquired.
	Open(ctx context.Context, cfg Config) (Device, error)
}

// Config specifies a rank and its device. A rank is one process of a parallel program. The world is
// the group of all ranks.
type Config struct {
	Rank      int // number of this rank in the world, from 0
	Size      int // number of ranks in the world
	LocalRank int // number of this rank among those on its machine, from 0
	// Device is the number of a visible device plus 1, or 0 to choose the device by LocalRank.
	Device int
	Store  Store
	// Timeout limits every wait for a peer, unless the wait has another deadline. It is positive.
	Timeout time.Duration
	Late    Late // when and how to warn of late ranks
	// Scatter, if not 0, is the seed of random offsets at which arenas map segments. It is for
	// tests.
	Scatter uint64
	// Interrupted, if not nil, is called repeatedly during long waits, possibly with locks held. If it
	// returns an error, which must wrap ErrInterrupted, the wait ends and the group fails.
	Interrupted func() error
}

// Store is a key-value store that all ranks of the world share.
type Store interface {
	Set(ctx context.Context, key string, value []byte) error
	// Get waits until the key has a value.
	Get(ctx context.Context, key string) ([]byte, error)
	// Peek is like Get, but does not wait. ok reports whether the key has a value.
	Peek(ctx context.Context, key string) (value []byte, ok bool, err error)
	// CompareSet stores desired if the current value equals expected. A missing key has an empty
	// value. CompareSet returns the value after the call.
	CompareSet(ctx context.Context, key string, expected, desired []byte) ([]byte, error)
	// ServedBy returns the world rank that serves the store, or -1 if unknown.
	ServedBy() int
}

// Info describes a device.
type Info struct {
	Backend, Name string // name of the backend, and model of the device
	Granularity   int64  // unit of segment sizes in bytes; a power of two
	Addressable   bool   // the CPU can access device memory
	CheckIsFree   bool   // GroupConfig.Check costs no extra communication
}

// Device provides one rank's memory, streams and communicators.
type Device interface {
	Info() Info
	// NewArena reserves addresses. bytes is a multiple of Info.Granularity.
	NewArena(bytes int64) (Arena, error)
	NewStream() (Stream, error)
	NewEvent() (Event, error)
	// Connect joins a group. Every rank of the group calls it with the same ID and Ranks.
	Connect(ctx context.Context, group GroupConfig) (Communicator, error)
	// Close releases the device. Call it after all communicators, arenas and streams are closed.
	Close() error
}

// Arena is a reserved range of addresses, at which segments are mapped.
type Arena interface {
	Address() uintptr
	// Map maps zeroed memory at offset, which must be free. If Config.Scatter is set, Map ignores
	// offset and chooses one. offset and bytes are multiples of Info.Granularity. If the device has
	// too little memory, Map returns an OutOfMemoryError.
	Map(offset, bytes int64) (Segment, error)
	// Keep allows the device to be closed before the arena. It shrinks the arena to the given size,
	// which must cover all mapped segments.
	Keep(bytes int64) error
	// Close releases the addresses. Call it after all segments have been unmapped.
	Close() error
}

// Segment is a block of memory that is mapped as a whole.
type Segment interface {
	Address() uintptr
	Bytes() int64
	// Keep allows the device to be closed before Unmap, and ends the peers' access. Call it after
	// deregistering the segment from all communicators.
	Keep() error
	// Unmap releases the memory. Call it when no window and no work uses the memory.
	Unmap() error
}

// Event marks a point in a stream, which Stream.Record sets.
type Event interface {
	// Done reports whether the stream has reached the point. Without a point, it returns true.
	Done() bool
	// Synchronize waits until the stream has reached the point. If the stream failed before the point,
	// every call returns the stream's error.
	Synchronize(ctx context.Context) error
}

// Stream is an ordered, asynchronous queue of work. An idle stream may run work immediately.
//
// The first error of its work makes a stream fail. The stream then drops all work until
// Stream.Synchronize has returned the error. A dropped collective or message makes its communicator
// fail with a PriorError. An Event recorded on a failed stream is done, and has the stream's error.
type Stream interface {
	Copy(dst, src uintptr, bytes int64) error
	// Fill sets each of the bytes to value.
	Fill(dst uintptr, value byte, bytes int64) error
	// Host queues a function that runs on the host. The function must not call symmem.
	Host(work func()) error
	// Record moves the event's point to the end of the queued work. On a closed stream without
	// queued work, it returns ErrClosed.
	Record(Event) error
	// Wait delays later work until the event is done, without a deadline. If the event has an error,
	// this stream fails with the same error.
	Wait(Event) error
	// WaitIgnoringErrors is like Wait, but ignores the event's error. It is for later work that
	// reuses the memory of the awaited work without its results.
	WaitIgnoringErrors(Event) error
	// Fail makes the stream fail, in stream order, with an error that the caller already knows.
	// Synchronize returns cause, but Close does not.
	Fail(cause error)
	// Synchronize waits until the stream is idle and returns the first error of its work, once.
	Synchronize(ctx context.Context) error
	// BeginCapture makes the stream record work instead of running it. A captured Wait is for the
	// event's current point. Unlike in CUDA, it does not add the event's stream to the capture.
	BeginCapture() error
	// EndCapture ends the capture and returns the recorded work.
	EndCapture() (Graph, error)
	Capturing() bool
	// Close waits for queued work, for up to twice Config.Timeout, and releases the stream.
	Close() error
}

// Graph is recorded work that can be run repeatedly.
type Graph interface {
	// Launch queues the recorded work on a stream of the same device.
	Launch(Stream) error
	// Close releases the graph. Until Close, the memory that the graph uses must stay valid.
	Close() error
}
