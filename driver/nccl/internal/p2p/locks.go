package p2p

import "symmem/internal/ranked"

// The classes of this package's locks, in the order in which a goroutine takes them. doc.go names
// them in the same order.
type (
	inboxMu  struct{}
	deviceMu struct{}
)

// Rank is the place of inbox.mu.
func (inboxMu) Rank() ranked.Rank { return ranked.NCCL.At(6, "p2p.inbox.mu") }

// Rank is the place of Device.mu.
func (deviceMu) Rank() ranked.Rank { return ranked.NCCL.At(23, "p2p.Device.mu") }
