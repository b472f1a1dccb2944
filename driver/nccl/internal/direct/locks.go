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
func (launchesMu) Rank() ranked.Rank { return rankOf(8, "direct.Launches.mu") }

// Rank is the place of Exchange.mu.
func (exchangeMu) Rank() ranked.Rank { return rankOf(9, "direct.Exchange.mu") }

// Rank is the place of LaunchOrder.mu.
func (orderMu) Rank() ranked.Rank { return rankOf(13, "direct.LaunchOrder.mu") }

// rankOf is the place of a lock that is never held while this rank waits for another one.
func rankOf(place int, name string) ranked.Rank {
	return ranked.Rank{Order: ranked.NCCL + place, Name: name}
}
