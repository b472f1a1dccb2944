package alloc

import (
	"errors"
	"fmt"
)

// The errors of this package.
var (
	ErrOutOfMemory = errors.New("out of memory")
	// ErrSize reports a size that is not positive, above MaxSize, or not a multiple of Unit.
	ErrSize = errors.New("bad size")
	// ErrAddress reports a segment address that is not a multiple of Unit or is at least 1<<47,
	// where user addresses end on x86-64.
	ErrAddress = errors.New("bad segment address")
	// ErrExhausted reports more than 1<<47 bytes of segments, or more than 1<<26 blocks or regions.
	ErrExhausted  = errors.New("arena exhausted")
	ErrConfig     = errors.New("bad allocator configuration")
	ErrDoubleFree = errors.New("block freed twice")
	ErrForeign    = errors.New("block does not belong to this pool")
	ErrFreed      = errors.New("block was freed")
	ErrNotPinned  = errors.New("block is not pinned")
	// ErrDeferred reports a Rebuild while blocks are deferred.
	ErrDeferred = errors.New("a freed block is still waiting for a stream")
)

// OutOfMemoryError contains sizes in bytes.
type OutOfMemoryError struct {
	Requested   int64
	Free        int64 // size of the stream's free blocks
	LargestFree int64
	Capacity    int64 // 0 means no limit
}

// Error describes the request and the remaining memory.
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
