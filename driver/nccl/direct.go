package nccl

import (
	"symmem/driver/nccl/internal/direct"
	"symmem/driver/nccl/internal/memory"
	"symmem/driver/nccl/kernels"
	"symmem/internal/control"
)

// directPath holds the state of a group's direct path, which runs collectives by symmem's own
// kernels (package kernels).
type directPath struct {
	// unavailable gives the reason why the group has no direct path; empty if it has. It is set before
	// the group is used.
	unavailable string
	// choose is Launch.Choose, or a function of a test that counts calls.
	choose   func(*kernels.Launch) error
	exchange direct.Exchange
	order    direct.LaunchOrder
	sharing  memory.Sharing
	// announcements shows each rank the launches of the others if they share memory; else nil.
	announcements control.Announcements
}
