package direct

import "symmem/internal/ranked"

type (
	launchesMu struct{}
	exchangeMu struct{}
	orderMu    struct{}
)

func (launchesMu) Rank() ranked.Rank { return ranked.NCCL.At(8, "direct.Launches.mu") }

func (exchangeMu) Rank() ranked.Rank { return ranked.NCCL.At(9, "direct.Exchange.mu") }

func (orderMu) Rank() ranked.Rank { return ranked.NCCL.At(12, "direct.LaunchOrder.mu") }
