package alloc

import (
	"errors"
	"fmt"
)

// Errors that the methods of a Core return, possibly wrapped.
var (
	// ErrOutOfMemory matches every *OutOfMemoryError.
	ErrOutOfMemory = errors.New("out of memory")
	// ErrSize means a byte count that is not positive, above MaxSize, or not a multiple of Unit
	// where that is required.
	ErrSize = errors.New("bad size")
	// ErrAddress means a segment address that is not a multiple of Unit or not below 1<<47, the end
	// of the user address space of x86-64. Only the Address policy can return it.
	ErrAddress = errors.New("bad segment address")
	// ErrExhausted means that all segments added so far would exceed 1<<47 bytes of arena, or that
	// a Core would hold more than 1<<26 blocks or regions.
	ErrExhausted = errors.New("arena exhausted")
	// ErrConfig means a Config with fields that are out of range.
	ErrConfig = errors.New("bad allocator configuration")
	// ErrDoubleFree means that a block has already been freed.
	ErrDoubleFree = errors.New("block freed twice")
	// ErrForeign means a block that this Core has not allocated.
	ErrForeign = errors.New("block does not belong to this pool")
	// ErrFreed means that a block was used or pinned after it was freed.
	ErrFreed = errors.New("block was freed")
	// ErrNotPinned means an Unpin without a Pin.
	ErrNotPinned = errors.New("block is not pinned")
	// ErrDeferred means that a Core cannot be rebuilt while blocks are deferred.
	ErrDeferred = errors.New("a freed block still waits for a stream")
)

// OutOfMemoryError reports that a request fits neither the free memory of its stream nor the memory
// that can still be mapped. All fields are in bytes.
type OutOfMemoryError struct {
	Requested   int64 // size of the request
	Free        int64 // sum of the stream's free blocks
	LargestFree int64 // largest free block of the stream
	Capacity    int64 // limit of the pool, 0 if it has none
}

// Error returns the message, with all sizes in bytes.
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
