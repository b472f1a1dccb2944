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

// Policy breaks ties between free blocks of the best size.
type Policy uint8

const (
	// CreationOrder selects the lowest offset in the oldest segment. Ranks with the same history
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
	//	others           request, rounded up to 2 MiB  more than 1 MiB remains
	Stepped
)

// Sizes for Stepped, from PyTorch's c10/cuda/CUDACachingAllocator.cpp and AllocatorConfig.h.
const (
	smallLimit   = 1 * mib
	smallSegment = 2 * mib  // for requests up to smallLimit
	largeSegment = 20 * mib // for requests above smallLimit and below largeLimit
	largeLimit   = 10 * mib
	largeStep    = 2 * mib // granularity of segments for other requests
)

// Config configures a Core. Ranks place blocks identically only with equal Configs.
type Config struct {
	Policy Policy
	Sizing Sizing

	// Capacity limits the mapped bytes; 0 means no limit.
	Capacity int64

	// First is the size of the first segment in bytes, for Geometric sizing; 0 means 64 MiB.
	First int64
	// Granularity divides all segment sizes of Geometric sizing. It is a power of two in bytes; 0
	// means 2 MiB.
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

// remainingSegment returns the size of the largest segment that Capacity permits. It returns 0 if
// the request does not fit, or if Sizing is Stepped, which has fixed sizes.
func (c *Config) remainingSegment(requestBytes, mappedBytes int64) int64 {
	availableBytes := c.Capacity - mappedBytes
	segmentBytes := availableBytes &^ (c.Granularity - 1) // rounded down
	if segmentBytes < requestBytes || c.Sizing == Stepped {
		return 0
	}

	return segmentBytes
}
