package gpu

import "symmem/internal/ranked"

type (
	internalStreamMu struct{}
	codeMu           struct{}
	pinnedMu         struct{}
	gpuMu            struct{}
)

func (internalStreamMu) Rank() ranked.Rank { return ranked.NCCL.At(10, "gpu.InternalStream.mu") }

func (codeMu) Rank() ranked.Rank { return ranked.NCCL.At(11, "gpu.Code.Mu") }

func (pinnedMu) Rank() ranked.Rank { return ranked.NCCL.At(17, "gpu.Pinned.Mu") }

func (gpuMu) Rank() ranked.Rank { return ranked.NCCL.At(22, "gpu.GPU.mu") }
