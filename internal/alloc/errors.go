package alloc

import (
	"errors"
	"fmt"
)

// The errors of this package.
var (
	ErrOutOfMemory = errors.New("out of memory")
	// ErrSize reports a number of bytes that is not positive, above MaxSize, or not a multiple of
	// Unit.
	ErrSize = errors.New("bad size")
	// ErrAddress reports a segment address that is not a multiple of Unit or not below 1<<47, the
	// end of x86-64's user address space.
	ErrAddress = errors.New("bad segment address")
	// ErrExhausted reports more than 1<<47 bytes of segments, or more than 1<<26 blocks or regions.
	ErrExhausted = errors.New("arena exhausted")
	// ErrConfig reports a Config field that is out of range.
	ErrConfig = errors.New("bad allocator configuration")
	// ErrDoubleFree reports a Free of a block that has already been freed.
	ErrDoubleFree = errors.New("block freed twice")
	// ErrForeign reports a block that this Core has not allocated.
	ErrForeign = errors.New("block does not belong to this pool")
	// ErrFreed reports a call that needs a live block but got a freed one.
	ErrFreed = errors.New("block was freed")
	// ErrNotPinned reports an Unpin without a Pin.
	ErrNotPinned = errors.New("block is not pinned")
	// ErrDeferred reports a Rebuild while blocks are deferred.
	ErrDeferred = errors.New("a freed block is still waiting for a stream")
)

// OutOfMemoryError reports a request for which there is no memory. All fields are in bytes.
type OutOfMemoryError struct {
	Requested   int64
	Free        int64 // size of the stream's free blocks
	LargestFree int64
	Capacity    int64 // 0 means no limit
}

// Error describes the request and the memory that is left.
func (e *OutOfMemoryError) Error() string {
	limit := "no capacity set"
	if e.Capacity > 0 {
		limit = fmt.Sprintf("capacity %d", e.Capacity)
	}
	return fmt.Sprintf("out of memory: requested %d bytes, free %d, largest free block %d, %s",
		e.Requested, e.Free, e.LargestFree, limit)
}

// Is reports whether target is ErrOutOfMemory.
func (e *OutOfMemoryError) Is(target error) bool { return target == ErrOutOfMemory }
