package alloc

import "fmt"

const (
	kib = int64(1) << 10
	mib = int64(1) << 20
)

// Unit is the alignment of blocks in bytes, as in PyTorch.
const Unit = 512

const unitShift = 9 // log2 of Unit

// MaxSize is the maximum size of a request or segment: 64 TiB.
const MaxSize = int64(1) << 46

// Policy selects among free blocks of the same size.
type Policy uint8

const (
	// CreationOrder selects the lowest offset in the oldest segment. After equal calls, all ranks
	// select the same block.
	CreationOrder Policy = iota
	// AddressOrder selects the lowest address, like PyTorch up to 2.11. Ranks can diverge, because
	// their segments have different addresses.
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
	// Geometric doubles the mapped memory with each segment. It splits a block if at least one Unit
	// remains.
	Geometric Sizing = iota
	// Stepped follows PyTorch:
	//
	//	request          new segment                   splits a block if
	//	up to 1 MiB      2 MiB                         at least one Unit remains
	//	below 10 MiB     20 MiB                        more than 1 MiB remains
	//	10 MiB or more   request, rounded up to 2 MiB  more than 1 MiB remains
	Stepped
)

// Sizes for Stepped, from PyTorch's c10/cuda/CUDACachingAllocator.cpp and AllocatorConfig.h.
const (
	maxSmallRequest = 1 * mib
	minLargeRequest = 10 * mib
	smallSegment    = 2 * mib
	mediumSegment   = 20 * mib
	largeStep       = 2 * mib // divides the sizes of larger segments
)

// Config configures a Core. Its zero value is valid.
type Config struct {
	Policy Policy
	Sizing Sizing

	// Capacity limits the mapped bytes; 0 means no limit.
	Capacity int64

	// First is the size of the first segment in bytes, for Geometric sizing; 0 means 64 MiB.
	First int64
	// Granularity rounds up segment sizes of Geometric sizing. It is a power of two in bytes; 0 means
	// 2 MiB.
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

func (c *Config) segmentSize(roundedBytes, mappedBytes int64) int64 {
	if c.Sizing == Geometric {
		preferred := roundUp(max(mappedBytes, c.First), c.Granularity)
		return max(roundUp(roundedBytes, c.Granularity), min(preferred, MaxSize))
	}

	switch {
	case roundedBytes <= maxSmallRequest:
		return smallSegment
	case roundedBytes < minLargeRequest:
		return mediumSegment
	default:
		return roundUp(roundedBytes, largeStep)
	}
}

// limitSegment returns wantedBytes, or less if Capacity requires it. It returns 0 if the request
// would not fit, or if Sizing is Stepped, which has no smaller segments.
func (c *Config) limitSegment(wantedBytes, requestBytes, mappedBytes int64) int64 {
	hasNoLimit := c.Capacity == 0
	availableBytes := c.Capacity - mappedBytes
	if hasNoLimit || wantedBytes <= availableBytes {
		return wantedBytes
	}

	segmentBytes := availableBytes &^ (c.Granularity - 1) // rounded down
	if segmentBytes < requestBytes || c.Sizing == Stepped {
		return 0
	}

	return segmentBytes
}

// smallIndexBit returns the lowest bit of the index's id for a size: 1 for small segments.
func (c *Config) smallIndexBit(roundedBytes int64) uint32 {
	if c.Sizing == Stepped && roundedBytes <= maxSmallRequest {
		return 1
	}

	return 0
}

func isSmallIndex(indexID uint32) bool { return indexID&1 != 0 }

func (c *Config) shouldSplit(roundedBytes, remainder int64) bool {
	if c.Sizing == Geometric || c.smallIndexBit(roundedBytes) == 1 {
		return remainder >= Unit
	}

	return remainder > maxSmallRequest
}

func roundUp(n, step int64) int64 { return (n + step - 1) &^ (step - 1) }
