package nccl

import "symmem/internal/ranked"

type (
	communicatorMu struct{}
	deviceMu       struct{}
	membersMu      struct{}
)

// Rank permits several locks of communicators, in the order of their numbers, as in a launch of a
// graph.
func (communicatorMu) Rank() ranked.Rank {
	r := ranked.NCCL.Waiting(5, "nccl.communicator.mu")
	r.AllowsSeveral = true
	return r
}

func (deviceMu) Rank() ranked.Rank { return ranked.NCCL.At(21, "nccl.Device.mu") }

func (membersMu) Rank() ranked.Rank { return ranked.NCCL.At(24, "nccl.members.mu") }

// groupLock implements communicator.mu, which the parts of a communicator share.
type groupLock = ranked.Spin[communicatorMu]
