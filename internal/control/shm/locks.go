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
func (laneMu) Rank() ranked.Rank {
	r := rankOf(1, "shm.lane.mu")
	r.Waits = true
	return r
}

// Rank is the place of Counts.Mu.
func (countsMu) Rank() ranked.Rank { return rankOf(2, "shm.Counts.Mu") }

// Rank is the place of Group.Mu.
func (groupMu) Rank() ranked.Rank { return rankOf(3, "shm.Group.Mu") }

// Rank is the place of Machine.mu.
func (machineMu) Rank() ranked.Rank { return rankOf(4, "shm.Machine.mu") }

// rankOf is the place of a lock that is never held while this rank waits for another one.
func rankOf(place int, name string) ranked.Rank {
	return ranked.Rank{Order: ranked.SHM + place, Name: name}
}
