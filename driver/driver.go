package driver

import (
	"context"
	"time"
)

// Backend opens devices. It is stateless.
type Backend interface {
	// Name returns a name such as "host", which selects the backend.
	Name() string
	// Open opens this rank's device. Every rank of the world calls it once, with the same Store. If
	// Open fails, it releases everything it acquired.
	Open(ctx context.Context, cfg Config) (Device, error)
}

// Config specifies which rank uses a device and how ranks find each other.
type Config struct {
	Rank, Size int
	// LocalRank is this rank's number on its machine.
	LocalRank int
	// Device is the ordinal of the visible device to open, plus 1. If Device is 0, LocalRank
	// selects the device.
	Device int
	Store  Store
	// Timeout limits every wait for a peer without another deadline. It is positive.
	Timeout time.Duration
	Late    Late
	// Scatter, if not 0, is the seed of random segment addresses. They reveal code that relies on
	// the order of segments in memory. A backend without a window path may ignore Scatter.
	Scatter uint64
	// Interrupted, if set, is called repeatedly during long waits for peers, possibly while locks
	// are held. If it returns an error, which must wrap ErrInterrupted, the wait ends and its group
	// fails.
	Interrupted func() error
}

// Store is a key-value store that all ranks of the world share.
type Store interface {
	Set(ctx context.Context, key string, value []byte) error
	// Get waits until the value has been written.
	Get(ctx context.Context, key string) ([]byte, error)
	// Peek reports whether the value has been written. It does not wait.
	Peek(ctx context.Context, key string) (value []byte, ok bool, err error)
	// CompareSet stores desired if the current value is expected, and returns the value after the
	// call. An unwritten key has an empty value.
	CompareSet(ctx context.Context, key string, expected, desired []byte) ([]byte, error)
	// ServedBy returns the world rank that serves the store, or -1 if unknown.
	ServedBy() int
}

// Info describes a device.
type Info struct {
	Backend, Name string
	Granularity   int64 // of segment sizes in bytes; a power of two
	// Addressable is set if the processor can access device memory directly.
	Addressable bool
	// CheckIsFree is set if comparing calls across ranks costs no extra communication.
	CheckIsFree bool
}

// Device provides one rank's memory, streams and communicators.
type Device interface {
	Info() Info
	// NewArena reserves a range of addresses without mapping memory.
	NewArena(bytes int64) (Arena, error)
	NewStream() (Stream, error)
	NewEvent() (Event, error)
	// Connect joins a group. Every rank of the group calls it with the same ID and Ranks. If
	// Connect fails, this rank has no communicator.
	Connect(ctx context.Context, group GroupConfig) (Communicator, error)
	// Close requires that all communicators, arenas and streams are closed.
	Close() error
}

// Arena is a reserved range of addresses.
type Arena interface {
	Address() uintptr
	// Map maps new memory, filled with zeros. The range must be free, and offset and bytes must be
	// multiples of Info.Granularity. If Config.Scatter is set, Map chooses a random offset instead.
	// Map returns an OutOfMemoryError if the device has too little memory.
	Map(offset, bytes int64) (Segment, error)
	// Keep keeps the given number of bytes at the start, and releases as many other addresses as
	// possible. Nothing may be mapped at these. After Keep, the device may be closed before the
	// arena.
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
	// Unmap releases the memory. No window and no work may use the segment.
	Unmap() error
}

// Event marks a point in a stream that other streams and the host can wait for.
type Event interface {
	// Done reports whether the last recorded point has been reached. Before the first Record, Done
	// returns true.
	Done() bool
	// Synchronize waits until the last recorded point has been reached. If the stream failed before
	// this point, every call of Synchronize returns the stream's error.
	Synchronize(ctx context.Context) error
}

// Stream is an ordered, asynchronous queue of work. An idle stream may do work before the method
// that queues this work returns.
//
// A stream fails at the first error of its work. It works again when Synchronize has returned the
// error. A failed stream drops its work. A dropped collective or message makes its communicator
// fail with a PriorError. An event recorded on a failed stream is done and carries the error.
type Stream interface {
	Copy(dst, src uintptr, bytes int64) error
	Fill(dst uintptr, value byte, bytes int64) error
	// Host runs a function on the host. The function must not call symmem.
	Host(work func()) error
	// Record records an event after all queued work. On a closed stream, Record returns ErrClosed
	// when the queued work is done.
	Record(Event) error
	// Wait delays later work until the point that the event currently marks, without a deadline. If
	// the work before that point fails, this stream fails with the same error.
	Wait(Event) error
	// WaitOnly is like Wait, but this stream does not fail if the work before the point fails.
	// WaitOnly is for work that reuses the memory of this earlier work, but not its results.
	WaitOnly(Event) error
	// Fail makes the stream fail, in stream order, with an error that the caller already knows.
	// Synchronize returns this error once, but Close does not.
	Fail(cause error)
	// Synchronize waits until the stream is idle and returns the first error of its work. It
	// returns each error only once.
	Synchronize(ctx context.Context) error
	// BeginCapture makes the stream record work instead of running it. During the capture, Wait
	// refers to the point that the event marks at the time of the call. Unlike in CUDA, Wait does
	// not add the event's stream to the capture.
	BeginCapture() error
	EndCapture() (Graph, error)
	Capturing() bool
	// Close waits for queued work. After twice Config.Timeout, it abandons the work.
	Close() error
}

// Graph is recorded work that can be run repeatedly.
type Graph interface {
	Launch(Stream) error
	// Close releases the graph. The memory that the graph uses must stay valid until then.
	Close() error
}
