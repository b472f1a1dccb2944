package alloc

import "fmt"

const (
	kib = int64(1) << 10
	mib = int64(1) << 20
)

// Unit is the alignment of blocks in bytes. It is the same as in PyTorch.
const Unit = 512

const unitShift = 9 // log2 of Unit

// MaxSize is the maximum size of a request in bytes. It is far above the memory of any device, and
// low enough for the bits that the record of a block has for sizes.
const MaxSize = int64(1) << 46

// Policy selects the block for a request if several free blocks have the best size.
type Policy uint8

const (
	// CreationOrder selects the block in the oldest segment, and there the one with the lowest
	// offset. Ranks with the same history select the same block.
	CreationOrder Policy = iota
	// AddressOrder selects the block with the lowest address, like PyTorch up to 2.11. Ranks can
	// select different blocks, because their segments have different addresses.
	AddressOrder
)

func (p Policy) String() string {
	if p == AddressOrder {
		return "address"
	}

	return "creation"
}

// Sizing determines how large segments are and when blocks are split.
type Sizing uint8

const (
	// Geometric makes a new segment as large as all earlier segments together. It splits a block
	// for a smaller request if at least one Unit remains.
	Geometric Sizing = iota
	// Stepped follows PyTorch. Small requests, up to 1 MiB, get segments of 2 MiB. Large requests
	// get segments of 20 MiB, or of a multiple of 2 MiB. Stepped splits a block for a large request
	// only if more than 1 MiB remains.
	Stepped
)

// The sizes for Stepped come from PyTorch's c10/cuda/CUDACachingAllocator.cpp and
// AllocatorConfig.h.
const (
	smallLimit   = 1 * mib  // maximum size of small requests
	smallSegment = 2 * mib  // size of segments for small requests
	largeSegment = 20 * mib // size of segments for large requests below largeLimit
	largeLimit   = 10 * mib // a request of at least this size gets a segment that fits it
	largeStep    = 2 * mib  // the size of such a segment is a multiple of this
)

// Config configures a Core. It must be the same on all ranks that are to place blocks identically.
type Config struct {
	Policy Policy
	Sizing Sizing

	// Capacity limits the mapped bytes; 0 means no limit.
	Capacity int64

	// First is the size of the first segment in bytes, for Geometric sizing. 0 means 64 MiB.
	First int64
	// Granularity is a power of two, in bytes. With Geometric sizing, the sizes of segments are
	// multiples of Granularity. 0 means 2 MiB.
	Granularity int64
}

// ensureDefaults replaces the fields whose 0 means a default.
func (c *Config) ensureDefaults() {
	if c.First == 0 {
		c.First = 64 * mib
	}

	if c.Granularity == 0 {
		c.Granularity = 2 * mib
	}
}

// Validate returns an error that wraps ErrConfig if a field is out of range.
func (c Config) Validate() error {
	c.ensureDefaults() // changes only this copy
	isPowerOfTwo := c.Granularity&(c.Granularity-1) == 0
	switch {
	case c.Policy > AddressOrder || c.Sizing > Stepped:
		return fmt.Errorf("policy %d, sizing %d: %w", c.Policy, c.Sizing, ErrConfig)
	case c.Capacity < 0 || c.Capacity > MaxSize:
		return fmt.Errorf("capacity of %d bytes: %w", c.Capacity, ErrConfig)
	case c.First < 0 || c.First > MaxSize:
		return fmt.Errorf("first segment of %d bytes: %w", c.First, ErrConfig)
	case c.Granularity < Unit || c.Granularity > MaxSize || !isPowerOfTwo:
		return fmt.Errorf("granularity of %d bytes: %w", c.Granularity, ErrConfig)
	}

	return nil
}

// remainingSegment returns the largest size of a new segment that Capacity permits. It returns 0 if
// the request does not fit into this segment, or if Sizing is Stepped, whose sizes are fixed.
func (c *Config) remainingSegment(requestBytes, mappedBytes int64) int64 {
	bytes := (c.Capacity - mappedBytes) &^ (c.Granularity - 1) // rounded down
	if bytes < requestBytes || c.Sizing == Stepped {
		return 0
	}

	return bytes
}
