package nccl

import (
	"symmem/driver/nccl/internal/direct"
	"symmem/driver/nccl/internal/memory"
	"symmem/driver/nccl/kernels"
	"symmem/internal/control"
)

// directPath holds the state of a group's direct path, on which symmem's own kernels (package
// kernels) run collectives.
type directPath struct {
	// unavailableReason is the reason why the group has no direct path, or "". It is set before the
	// group is used.
	unavailableReason string
	// choose is kernels.Choose, except in tests.
	choose   func(kernels.Launch) (kernels.Work, error)
	exchange direct.Exchange
	order    direct.LaunchOrder
	sharing  memory.Sharing
	// announcements lets each rank see what the other ranks have launched. It is nil if the ranks
	// share no host memory.
	announcements control.Announcements
}
