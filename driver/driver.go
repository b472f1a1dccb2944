package driver

import (
	"context"
	"time"
)

// Backend opens devices. It is stateless.
type Backend interface {
	// Name is the word users write to choose the backend, such as "host".
	Name() string
	// Open opens the device of this rank.
	//
	// Preconditions: cfg is valid; every rank of the world opens one device with the same Store.
	// Postconditions: on an error nothing is left behind.
	Open(ctx context.Context, cfg Config) (Device, error)
}

// Config says which rank a device is for and how ranks find each other.
type Config struct {
	// Rank and Size are this rank's number and the number of ranks in the world.
	Rank, Size int
	// LocalRank is this rank's number among those of its machine.
	LocalRank int
	// Device is the ordinal of the device to open among those that the process sees, plus 1; 0
	// leaves it to LocalRank.
	Device int
	// Store is shared by all ranks. It is used to get to know each other, never on a hot path.
	Store Store
	// Timeout bounds every wait for a peer that has no other deadline. It is positive.
	Timeout time.Duration
	// Late says when to warn about late ranks. A warning does not end the wait.
	Late Late
	// Scatter, if not 0, makes segments land at addresses drawn from this number instead of one
	// after the other, as a GPU driver does. It shows mistakes; it never cures one. A backend without
	// paths over windows has none to show, and may leave it.
	Scatter uint64
	// Interrupted, if set, is asked now and then by waits for peers that take long, on the
	// goroutine that waits and perhaps with the lock of a stream held. An error ends the wait, and
	// with it the group; it wraps ErrInterrupted. It must be quick and may be called at any time.
	Interrupted func() error
}

// Store is a key-value store that all ranks of the world share.
type Store interface {
	// Set writes a value.
	Set(ctx context.Context, key string, value []byte) error
	// Get returns a value, and waits for it to be written first.
	Get(ctx context.Context, key string) ([]byte, error)
	// Peek returns a value if it is there, and does not wait for it.
	Peek(ctx context.Context, key string) (value []byte, there bool, err error)
	// ServedBy is the world rank that serves the store, or -1 where none is known to.
	ServedBy() int
}

// Info describes a device.
type Info struct {
	// Backend and Name say what the device is, for people.
	Backend, Name string
	// Granularity is the unit of segment sizes in bytes, a power of two.
	Granularity int64
	// Addressable reports whether the processor can read and write device memory directly.
	Addressable bool
	// CheckIsFree reports whether comparing every collective across ranks costs nothing here, because
	// the comparison rides in words that ranks exchange anyway.
	CheckIsFree bool
}

// Device is one rank's memory and the queues that work on it.
type Device interface {
	// Info describes the device. It never changes.
	Info() Info
	// NewArena reserves a range of addresses; no memory is behind it yet.
	NewArena(bytes int64) (Arena, error)
	// NewStream makes an ordered, asynchronous queue of work.
	NewStream() (Stream, error)
	// NewEvent makes an event that no stream has recorded yet.
	NewEvent() (Event, error)
	// Connect joins a group. It is collective: every rank of the group calls it with the same
	// id and ranks. On an error no communicator is left on this rank.
	Connect(ctx context.Context, group GroupConfig) (Communicator, error)
	// Close gives everything back. Communicators, arenas and streams are closed before.
	Close() error
}

// Arena is a reserved range of addresses.
type Arena interface {
	// Address is the first address of the range.
	Address() uintptr
	// Map puts new memory at an offset of the arena (or, with Config.Scatter, elsewhere in it).
	// The memory reads as zeros. It returns an OutOfMemoryError when the device has no more.
	//
	// Preconditions: offset and bytes are multiples of Granularity; the range is free.
	Map(offset, bytes int64) (Segment, error)
	// Keep gives back what it can of the addresses behind the first bytes, which nothing is mapped
	// to. The arena and its segments may be closed and unmapped after the device.
	Keep(bytes int64) error
	// Close gives the addresses back. Segments are unmapped before.
	Close() error
}

// Segment is one physical allocation, mapped whole.
type Segment interface {
	// Address is where the segment is mapped on this rank.
	Address() uintptr
	// Bytes is its size.
	Bytes() int64
	// Keep ends what peers can do with a segment that has no windows any more, and gives back what
	// it takes beyond its memory, which stays mapped until Unmap.
	Keep() error
	// Unmap gives the memory back.
	//
	// Preconditions: every window over the segment is deregistered and no work uses it.
	Unmap() error
}

// Event marks a point in a stream.
type Event interface {
	// Done reports whether the last recorded point has been reached. An event that was never
	// recorded is done.
	Done() bool
	// Synchronize waits until the last recorded point has been reached. It returns the failure of
	// the stream at that point, as often as it is asked.
	Synchronize(ctx context.Context) error
}

// Stream is an ordered queue of work. Methods return when the work is queued; a stream that is
// idle may do the work before it returns.
//
// States: running; failed, after the first error of its work, and running again once Synchronize
// has returned that error. A failed stream does not run what is queued: it takes it and drops it.
// Points that are recorded meanwhile are reached and carry the error, and a collective or message
// that is dropped fails its communicator with a PriorError.
type Stream interface {
	// Copy copies bytes between device addresses.
	Copy(dst, src uintptr, bytes int64) error
	// Fill sets bytes.
	Fill(dst uintptr, value byte, bytes int64) error
	// Host runs a function of the host in stream order. It must not call into symmem.
	Host(work func()) error
	// Record marks a point in the stream: after everything queued before. It also works on a closed
	// stream while its work is running; a closed stream without work returns ErrClosed.
	Record(Event) error
	// Wait makes later work wait for the point that the event marks now. If the work before that
	// point has failed, this stream fails with the same error. The wait is for this rank's own work
	// and has no deadline.
	Wait(Event) error
	// WaitOnly is Wait without the failure: for work that does not use the results before the
	// point, such as that on memory which is used again.
	WaitOnly(Event) error
	// Fail makes the stream fail at this point of its work, with an error that the caller knows:
	// Synchronize returns it once more, and Close does not.
	Fail(cause error)
	// Synchronize waits until the stream is idle, and returns the first error of its work, once.
	Synchronize(ctx context.Context) error
	// BeginCapture starts to record work instead of running it. Only this stream's work is
	// recorded: a Wait in a capture is for the point that the event marks at the capture, and does
	// not draw another stream into it.
	BeginCapture() error
	// EndCapture stops and returns what was recorded.
	EndCapture() (Graph, error)
	// Capturing reports whether work is being recorded.
	Capturing() bool
	// Close waits for the work, bounded by twice Config.Timeout: what has not ended then is left.
	Close() error
}

// Graph is recorded work that can be run again and again.
type Graph interface {
	// Launch queues the work on a stream.
	Launch(Stream) error
	// Close forgets the work. The memory it uses outlives it.
	Close() error
}
