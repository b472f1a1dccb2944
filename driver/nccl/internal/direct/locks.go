package direct

import "symmem/internal/ranked"

// The classes of this package's locks, in the order in which a goroutine takes them. doc.go names
// them in the same order.
type (
	launchesMu struct{}
	exchangeMu struct{}
	orderMu    struct{}
)

// Rank is the place of Launches.mu.
func (launchesMu) Rank() ranked.Rank { return ranked.NCCL.At(8, "direct.Launches.mu") }

// Rank is the place of Exchange.mu.
func (exchangeMu) Rank() ranked.Rank { return ranked.NCCL.At(9, "direct.Exchange.mu") }

// Rank is the place of LaunchOrder.mu.
func (orderMu) Rank() ranked.Rank { return ranked.NCCL.At(12, "direct.LaunchOrder.mu") }
