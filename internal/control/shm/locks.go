package shm

import "symmem/internal/ranked"

// The classes of this package's locks, in the order in which a goroutine takes them. doc.go names
// them in the same order.
type (
	laneMu    struct{}
	countsMu  struct{}
	groupMu   struct{}
	machineMu struct{}
)

// Rank is the place of lane.mu, which is held while this rank waits for another one.
func (laneMu) Rank() ranked.Rank { return ranked.SHM.Waiting(1, "shm.lane.mu") }

// Rank is the place of Counts.Mu.
func (countsMu) Rank() ranked.Rank { return ranked.SHM.At(2, "shm.Counts.Mu") }

// Rank is the place of Group.Mu.
func (groupMu) Rank() ranked.Rank { return ranked.SHM.At(3, "shm.Group.Mu") }

// Rank is the place of Machine.mu.
func (machineMu) Rank() ranked.Rank { return ranked.SHM.At(4, "shm.Machine.mu") }
