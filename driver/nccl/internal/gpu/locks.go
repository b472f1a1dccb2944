package gpu

import "symmem/internal/ranked"

// Lock classes of this package, in the lock order that doc.go describes.
type (
	internalStreamMu struct{}
	codeMu           struct{}
	pinnedMu         struct{}
	gpuMu            struct{}
)

// Rank returns the lock rank of InternalStream.mu.
func (internalStreamMu) Rank() ranked.Rank { return ranked.NCCL.At(10, "gpu.InternalStream.mu") }

// Rank returns the lock rank of Code.Mu.
func (codeMu) Rank() ranked.Rank { return ranked.NCCL.At(11, "gpu.Code.Mu") }

// Rank returns the lock rank of Pinned.Mu.
func (pinnedMu) Rank() ranked.Rank { return ranked.NCCL.At(17, "gpu.Pinned.Mu") }

// Rank returns the lock rank of GPU.mu.
func (gpuMu) Rank() ranked.Rank { return ranked.NCCL.At(22, "gpu.GPU.mu") }
