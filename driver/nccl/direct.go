package nccl

import (
	"symmem/driver/nccl/internal/direct"
	"symmem/driver/nccl/internal/memory"
	"symmem/driver/nccl/kernels"
	"symmem/internal/control"
)

// directPath runs collectives of a group by kernels of our own (package kernels).
type directPath struct {
	// unavailable says why the group has no such kernels; empty if it has. It is set before the
	// group is used.
	unavailable string
	// choose is Launch.Choose; a test counts its calls.
	choose   func(*kernels.Launch) error
	exchange direct.Exchange
	order    direct.LaunchOrder
	sharing  memory.Sharing
	// announcements show each rank the launches of the others, if they share memory; else nil.
	announcements control.Announcements
}
