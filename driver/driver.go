package driver

import (
	"context"
	"time"
)

// Backend opens devices. It is stateless.
type Backend interface {
	// Name returns the name that selects the backend, such as "host".
	Name() string
	// Open opens the device of this rank.
	//
	// Preconditions: cfg is valid; every rank of the world opens one device, all with the same
	// Store.
	//
	// Postconditions: if Open fails, it has released everything it acquired.
	Open(ctx context.Context, cfg Config) (Device, error)
}

// Config specifies which rank uses a device and how ranks find each other.
type Config struct {
	// Rank is this rank's number. Size is the number of ranks in the world.
	Rank, Size int
	// LocalRank is this rank's number among the ranks of its machine.
	LocalRank int
	// Device selects the device to open. A positive value selects the visible device with ordinal
	// Device-1. If it is 0, LocalRank selects the device.
	Device int
	// Store is shared by all ranks. They use it to connect, but never on a hot path.
	Store Store
	// Timeout bounds every wait for a peer to which no other deadline applies. It is positive.
	Timeout time.Duration
	// Late configures warnings about late ranks. A warning does not end the wait for the rank.
	Late Late
	// Scatter, if not 0, seeds random segment addresses. GPU drivers do not guarantee the order of
	// segments in memory either, so Scatter helps to find code that relies on it. If Scatter is 0,
	// segments are contiguous. A backend without a window path may ignore Scatter.
	Scatter uint64
	// Interrupted, if set, is polled during long waits for peers. It runs on the waiting goroutine,
	// possibly with a stream's lock held, so it must be fast and safe to call at any time. If it
	// returns an error, which must wrap ErrInterrupted, the wait ends and its group fails.
	Interrupted func() error
}

// Store is a key-value store that all ranks of the world share.
type Store interface {
	// Set writes a value.
	Set(ctx context.Context, key string, value []byte) error
	// Get returns a value. It waits until the value has been written.
	Get(ctx context.Context, key string) ([]byte, error)
	// Peek returns a value and whether it has been written, without waiting.
	Peek(ctx context.Context, key string) (value []byte, ok bool, err error)
	// CompareSet stores desired if the key's current value is expected. A key that has not been
	// written counts as empty. CompareSet returns the key's value after the call.
	CompareSet(ctx context.Context, key string, expected, desired []byte) ([]byte, error)
	// ServedBy returns the world rank that serves the store, or -1 if it is not known.
	ServedBy() int
}

// Info describes a device.
type Info struct {
	// Backend and Name describe the device to users.
	Backend, Name string
	// Granularity is the unit of segment sizes in bytes, a power of two.
	Granularity int64
	// Addressable reports whether the processor can read and write device memory directly.
	Addressable bool
	// CheckIsFree reports whether comparing every collective across ranks costs nothing, because
	// the digests fit into words that ranks exchange anyway.
	CheckIsFree bool
}

// Device provides one rank's memory, streams and communicators.
type Device interface {
	// Info returns a description of the device, which never changes.
	Info() Info
	// NewArena reserves a range of addresses without mapping memory.
	NewArena(bytes int64) (Arena, error)
	// NewStream returns a new stream.
	NewStream() (Stream, error)
	// NewEvent returns an event that no stream has recorded yet.
	NewEvent() (Event, error)
	// Connect joins a group. It is collective: every rank of the group calls it with the same ID
	// and Ranks. If Connect fails, this rank has no communicator.
	Connect(ctx context.Context, group GroupConfig) (Communicator, error)
	// Close releases the device.
	//
	// Preconditions: the device's communicators, arenas and streams are closed.
	Close() error
}

// Arena is a reserved range of addresses.
type Arena interface {
	// Address returns the first address of the range.
	Address() uintptr
	// Map maps new memory, filled with zeros, at an offset in the arena. If Config.Scatter is set,
	// Map ignores the offset and chooses its own. It returns an OutOfMemoryError if the device has
	// no memory left.
	//
	// Preconditions: offset and bytes are multiples of Granularity; the range is free.
	Map(offset, bytes int64) (Segment, error)
	// Keep releases the addresses beyond the first bytes, as far as possible. Nothing may be mapped
	// beyond them. After Keep, the device may be closed while the arena is still open and its
	// segments are still mapped.
	Keep(bytes int64) error
	// Close releases the addresses.
	//
	// Preconditions: all segments are unmapped.
	Close() error
}

// Segment is a physical allocation that is mapped as a whole.
type Segment interface {
	// Address returns the address at which the segment is mapped on this rank.
	Address() uintptr
	// Bytes returns the segment's size.
	Bytes() int64
	// Keep ends the peers' access to the segment and releases everything except its memory, which
	// stays mapped until Unmap. The segment must have no windows.
	Keep() error
	// Unmap releases the memory.
	//
	// Preconditions: every window over the segment is deregistered, and no work uses the segment.
	Unmap() error
}

// Event marks a point in a stream that other streams and the host can wait for.
type Event interface {
	// Done reports whether the last recorded point has been reached. An event that was never
	// recorded is done.
	Done() bool
	// Synchronize waits until the last recorded point has been reached. If the stream had failed by
	// then, every call returns the stream's error.
	Synchronize(ctx context.Context) error
}

// Stream is an ordered, asynchronous queue of work. Methods return once the work is queued, but
// if the stream is idle, a method may do the work before it returns.
//
// The first error of a stream's work makes the stream fail until Synchronize has returned the
// error. A failed stream accepts work but drops it. An event recorded on a failed stream is done
// and carries the error. If a collective or message is dropped, its communicator fails with a
// PriorError.
type Stream interface {
	// Copy copies bytes between device addresses.
	Copy(dst, src uintptr, bytes int64) error
	// Fill sets each of the bytes that start at dst to value.
	Fill(dst uintptr, value byte, bytes int64) error
	// Host runs a function on the host in stream order. The function must not call symmem.
	Host(work func()) error
	// Record records an event after all work queued so far. On a closed stream, Record works as
	// long as queued work is running, and returns ErrClosed after that.
	Record(Event) error
	// Wait makes later work on this stream wait for the point that the event marks now. If the work
	// before that point has failed, this stream fails with the same error. The wait has no
	// deadline, because it waits only for this rank's work.
	Wait(Event) error
	// WaitOnly is like Wait, but this stream does not fail if the earlier work has failed. It is
	// meant for later work that does not use the results of the earlier work, but, for example,
	// reuses its memory.
	WaitOnly(Event) error
	// Fail makes the stream fail, in stream order, with an error that the caller already knows.
	// Synchronize returns this error once, but Close does not.
	Fail(cause error)
	// Synchronize waits until the stream is idle. It returns the first error of the stream's work,
	// and returns each error only once.
	Synchronize(ctx context.Context) error
	// BeginCapture starts recording this stream's work instead of running it. A Wait during the
	// capture refers to the point that the event marks at the time of the call, and does not add
	// the event's stream to the capture.
	BeginCapture() error
	// EndCapture ends the capture and returns the recorded work.
	EndCapture() (Graph, error)
	// Capturing reports whether the stream's work is being recorded.
	Capturing() bool
	// Close waits until the queued work is done. After twice Config.Timeout, it abandons the work.
	Close() error
}

// Graph is recorded work that can be run repeatedly.
type Graph interface {
	// Launch queues the work on a stream.
	Launch(Stream) error
	// Close releases the graph. The memory that the graph uses must stay valid until then.
	Close() error
}
