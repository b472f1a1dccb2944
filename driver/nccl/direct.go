package nccl

import (
	"symmem/driver/nccl/internal/direct"
	"symmem/driver/nccl/internal/memory"
	"symmem/driver/nccl/kernels"
	"symmem/internal/control"
)

// directPath holds the state of a group's direct path. On that path, symmem's own kernels (package
// kernels) run collectives.
type directPath struct {
	// unavailable is the reason why the group has no direct path, or empty. It is set before the
	// group is used.
	unavailable string
	// choose calls kernels.Choose. Tests replace it to count the calls.
	choose   func(kernels.Launch) (kernels.Work, error)
	exchange direct.Exchange
	order    direct.LaunchOrder
	sharing  memory.Sharing
	// announcements shows each rank the launches of the other ranks. It is nil if the ranks share
	// no host memory.
	announcements control.Announcements
}
