package memory

import "symmem/internal/ranked"

// The classes of this package's locks, in the order in which a goroutine takes them. doc.go names
// them in the same order.
type (
	scratchMu   struct{}
	segmentMu   struct{}
	memoryMu    struct{}
	useCountsMu struct{}
)

// Rank is the place of Scratch.mu.
func (scratchMu) Rank() ranked.Rank { return ranked.NCCL.At(3, "memory.Scratch.mu") }

// Rank is the place of Segment.mu.
func (segmentMu) Rank() ranked.Rank { return ranked.NCCL.At(4, "memory.Segment.mu") }

// Rank is the place of Memory.mu.
func (memoryMu) Rank() ranked.Rank { return ranked.NCCL.At(18, "memory.Memory.mu") }

// Rank is the place of UseCounts.mu.
func (useCountsMu) Rank() ranked.Rank { return ranked.NCCL.At(20, "memory.UseCounts.mu") }
