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
func (asideMu) Rank() ranked.Rank { return rankOf(11, "gpu.Aside.mu") }

// Rank is the place of Code.Mu.
func (codeMu) Rank() ranked.Rank { return rankOf(12, "gpu.Code.Mu") }

// Rank is the place of Pinned.Mu.
func (pinnedMu) Rank() ranked.Rank { return rankOf(18, "gpu.Pinned.Mu") }

// Rank is the place of GPU.mu.
func (gpuMu) Rank() ranked.Rank { return rankOf(23, "gpu.GPU.mu") }

// rankOf is the place of a lock that is never held while this rank waits for another one.
func rankOf(place int, name string) ranked.Rank {
	return ranked.Rank{Order: ranked.NCCL + place, Name: name}
}
