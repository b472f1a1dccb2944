package p2p

import "symmem/internal/ranked"

// Lock classes of this package, in the lock order that doc.go describes.
type (
	inboxMu  struct{}
	deviceMu struct{}
)

// Rank returns the lock rank of inbox.mu.
func (inboxMu) Rank() ranked.Rank { return ranked.NCCL.At(6, "p2p.inbox.mu") }

// Rank returns the lock rank of Device.mu.
func (deviceMu) Rank() ranked.Rank { return ranked.NCCL.At(23, "p2p.Device.mu") }
