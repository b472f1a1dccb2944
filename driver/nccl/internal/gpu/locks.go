package gpu

import "symmem/internal/ranked"

type (
	internalStreamsMu struct{}
	codeMu            struct{}
	pinnedMu          struct{}
	gpuMu             struct{}
)

func (internalStreamsMu) Rank() ranked.Rank { return ranked.NCCL.At(10, "gpu.InternalStreams.mu") }

func (codeMu) Rank() ranked.Rank { return ranked.NCCL.At(11, "gpu.Code.Mu") }

func (pinnedMu) Rank() ranked.Rank { return ranked.NCCL.At(17, "gpu.Pinned.Mu") }

func (gpuMu) Rank() ranked.Rank { return ranked.NCCL.At(22, "gpu.GPU.mu") }
