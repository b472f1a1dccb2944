package shm

import "symmem/internal/ranked"

// The classes of this package's locks, in the order in which they are acquired (see doc.go).
type (
	laneMu    struct{}
	countsMu  struct{}
	groupMu   struct{}
	machineMu struct{}
)

// Rank returns the rank of lane.mu and faultLogs.mu, which are held while this process waits for
// other ranks.
func (laneMu) Rank() ranked.Rank { return ranked.SHM.Waiting(1, "shm.lane.mu") }

// Rank returns the rank of Counts.Mu.
func (countsMu) Rank() ranked.Rank { return ranked.SHM.At(2, "shm.Counts.Mu") }

// Rank returns the rank of Group.Mu.
func (groupMu) Rank() ranked.Rank { return ranked.SHM.At(3, "shm.Group.Mu") }

// Rank returns the rank of Machine.mu.
func (machineMu) Rank() ranked.Rank { return ranked.SHM.At(4, "shm.Machine.mu") }
