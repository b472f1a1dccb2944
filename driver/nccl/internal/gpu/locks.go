package gpu

import "symmem/internal/ranked"

// The classes of this package's locks, in the order in which a goroutine takes them. doc.go names
// them in the same order.
type (
	asideMu  struct{}
	codeMu   struct{}
	pinnedMu struct{}
	gpuMu    struct{}
)

// Rank is the place of Aside.mu.
func (asideMu) Rank() ranked.Rank { return ranked.NCCL.At(10, "gpu.Aside.mu") }

// Rank is the place of Code.Mu.
func (codeMu) Rank() ranked.Rank { return ranked.NCCL.At(11, "gpu.Code.Mu") }

// Rank is the place of Pinned.Mu.
func (pinnedMu) Rank() ranked.Rank { return ranked.NCCL.At(17, "gpu.Pinned.Mu") }

// Rank is the place of GPU.mu.
func (gpuMu) Rank() ranked.Rank { return ranked.NCCL.At(22, "gpu.GPU.mu") }
