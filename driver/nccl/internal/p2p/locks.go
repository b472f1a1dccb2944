package p2p

import "symmem/internal/ranked"

type (
	inboxMu  struct{}
	deviceMu struct{}
)

func (inboxMu) Rank() ranked.Rank { return ranked.NCCL.At(6, "p2p.inbox.mu") }

func (deviceMu) Rank() ranked.Rank { return ranked.NCCL.At(23, "p2p.Device.mu") }
