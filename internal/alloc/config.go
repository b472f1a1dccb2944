package alloc

import "fmt"

const (
	kib = int64(1) << 10
	mib = int64(1) << 20
)

// Unit is the alignment of blocks, as in PyTorch.
const Unit = 512

const unitShift = 9

// MaxSize is the maximum size of a request in bytes.
const MaxSize = int64(1) << 46

// Policy selects which of several free blocks of the same size a request gets.
type Policy uint8

const (
	// CreationOrder selects the block with the lowest segment ordinal and then the lowest offset.
	// This block is the same on all ranks.
	CreationOrder Policy = iota
	// AddressOrder selects the block with the lowest address, like PyTorch up to 2.11. This block
	// can differ between ranks.
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
	// Geometric makes a new segment as large as all earlier segments together. Blocks are split if
	// at least one Unit remains.
	Geometric Sizing = iota
	// Stepped follows PyTorch: segments have 2 MiB for small requests, and 20 MiB or a multiple of 2
	// MiB for large requests. Blocks for large requests are split only if more than 1 MiB remains.
	Stepped
)

// The sizes for Stepped come from PyTorch's c10/cuda/CUDACachingAllocator.cpp and
// AllocatorConfig.h.
const (
	smallLimit   = 1 * mib  // maximum size of small requests
	smallSegment = 2 * mib  // size of segments for small requests
	largeSegment = 20 * mib // size of segments for large requests below largeLimit
	largeLimit   = 10 * mib // requests from this size on get a separate segment
	largeStep    = 2 * mib  // separate segments have a multiple of this size
)

// Config configures a Core. It must be the same on all ranks that must place blocks identically.
type Config struct {
	Policy Policy
	Sizing Sizing

	// Capacity limits the mapped bytes; 0 means no limit.
	Capacity int64

	// First is the size of the first segment in bytes, for Geometric sizing. 0 means 64 MiB.
	First int64
	// Granularity is a power of two. With Geometric sizing, the sizes of segments are multiples of
	// it. 0 means 2 MiB.
	Granularity int64
}

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
	c.ensureDefaults()
	switch {
	case c.Policy > AddressOrder || c.Sizing > Stepped:
		return fmt.Errorf("policy %d, sizing %d: %w", c.Policy, c.Sizing, ErrConfig)
	case c.Capacity < 0 || c.Capacity > MaxSize:
		return fmt.Errorf("capacity of %d bytes: %w", c.Capacity, ErrConfig)
	case c.First < 0 || c.First > MaxSize:
		return fmt.Errorf("first segment of %d bytes: %w", c.First, ErrConfig)
	case c.Granularity < Unit || c.Granularity > MaxSize || c.Granularity&(c.Granularity-1) != 0:
		return fmt.Errorf("granularity of %d bytes: %w", c.Granularity, ErrConfig)
	}
	return nil
}

// remainingSegment returns the largest size of a new segment that Capacity permits. It returns 0
// if the request would not fit into this segment, or if Sizing is Stepped, where sizes are fixed.
func (c *Config) remainingSegment(requestBytes, mappedBytes int64) int64 {
	bytes := (c.Capacity - mappedBytes) &^ (c.Granularity - 1)
	if bytes < requestBytes || c.Sizing == Stepped {
		return 0
	}
	return bytes
}
