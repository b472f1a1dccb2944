package direct

import "symmem/internal/ranked"

// Lock classes of this package, in the lock order that doc.go describes.
type (
	launchesMu struct{}
	exchangeMu struct{}
	orderMu    struct{}
)

// Rank returns the lock rank of Launches.mu.
func (launchesMu) Rank() ranked.Rank { return ranked.NCCL.At(8, "direct.Launches.mu") }

// Rank returns the lock rank of Exchange.mu.
func (exchangeMu) Rank() ranked.Rank { return ranked.NCCL.At(9, "direct.Exchange.mu") }

// Rank returns the lock rank of LaunchOrder.mu.
func (orderMu) Rank() ranked.Rank { return ranked.NCCL.At(12, "direct.LaunchOrder.mu") }
