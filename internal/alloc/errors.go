package alloc

import (
	"errors"
	"fmt"
)

// Errors that a Core's methods return, possibly wrapped.
var (
	ErrOutOfMemory = errors.New("out of memory")
	// ErrSize reports a number of bytes that is not positive, is above MaxSize, or is not a
	// multiple of Unit where this is required.
	ErrSize = errors.New("bad size")
	// ErrAddress reports a segment address that is not a multiple of Unit or not below 1<<47, the
	// end of x86-64's user address space. It is returned only under the Address policy.
	ErrAddress = errors.New("bad segment address")
	// ErrExhausted reports that all segments added so far would exceed 1<<47 bytes of arena, or
	// that a Core would have more than 1<<26 blocks or regions.
	ErrExhausted = errors.New("arena exhausted")
	// ErrConfig reports a Config field that is out of range.
	ErrConfig = errors.New("bad allocator configuration")
	// ErrDoubleFree reports a Free of a block that has already been freed.
	ErrDoubleFree = errors.New("block freed twice")
	// ErrForeign reports a block that this Core has not allocated.
	ErrForeign = errors.New("block does not belong to this pool")
	// ErrFreed reports the use or pin of a freed block.
	ErrFreed = errors.New("block was freed")
	// ErrNotPinned reports an Unpin without a Pin.
	ErrNotPinned = errors.New("block is not pinned")
	// ErrDeferred reports that a Core cannot be rebuilt while blocks are deferred.
	ErrDeferred = errors.New("a freed block is still waiting for a stream")
)

// OutOfMemoryError reports that a request fits neither into the stream's free memory nor into
// the memory that can still be mapped. All fields are in bytes.
type OutOfMemoryError struct {
	Requested   int64 // size of the request
	Free        int64 // total size of the stream's free blocks
	LargestFree int64 // largest free block of that stream
	Capacity    int64 // limit of the pool; 0 means no limit
}

// Error describes the request and the memory that is left, in bytes.
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
