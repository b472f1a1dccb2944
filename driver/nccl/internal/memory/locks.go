package memory

import "symmem/internal/ranked"

type (
	scratchMu   struct{}
	segmentMu   struct{}
	memoryMu    struct{}
	useCountsMu struct{}
)

func (scratchMu) Rank() ranked.Rank { return ranked.NCCL.At(3, "memory.Scratch.mu") }

func (segmentMu) Rank() ranked.Rank { return ranked.NCCL.At(4, "memory.Segment.mu") }

func (memoryMu) Rank() ranked.Rank { return ranked.NCCL.At(18, "memory.Memory.mu") }

func (useCountsMu) Rank() ranked.Rank { return ranked.NCCL.At(20, "memory.UseCounts.mu") }
