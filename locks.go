package symmem

import "symmem/internal/ranked"

// The classes of this package's locks, in the order in which a goroutine takes them. doc.go names
// them in the same order.
type (
	guestMu         struct{}
	groupMu         struct{}
	graphMu         struct{}
	valueMu         struct{}
	streamPinning   struct{}
	poolMu          struct{}
	streamRecording struct{}
	guestWindows    struct{}
	runtimeMu       struct{}
	groupState      struct{}
	faultMu         struct{}
	sitesMu         struct{}
	membersMu       struct{}
)

// Rank is the place of Guest.mu.
func (guestMu) Rank() ranked.Rank { return waitingRank(1, "symmem.Guest.mu") }

// Rank is the place of Group.mu.
func (groupMu) Rank() ranked.Rank { return waitingRank(2, "symmem.Group.mu") }

// Rank is the place of Graph.mu.
func (graphMu) Rank() ranked.Rank { return waitingRank(3, "symmem.Graph.mu") }

// Rank is the place of valueName.mu.
func (valueMu) Rank() ranked.Rank { return waitingRank(4, "symmem.valueName.mu") }

// Rank is the place of Stream.pinning.
func (streamPinning) Rank() ranked.Rank { return rankOf(5, "symmem.Stream.pinning") }

// Rank is the place of Pool.mu.
func (poolMu) Rank() ranked.Rank { return rankOf(6, "symmem.Pool.mu") }

// Rank is the place of Stream.recording.
func (streamRecording) Rank() ranked.Rank { return rankOf(7, "symmem.Stream.recording") }

// Rank is the place of Guest.windowsMu.
func (guestWindows) Rank() ranked.Rank { return rankOf(8, "symmem.Guest.windowsMu") }

// Rank is the place of Runtime.mu.
func (runtimeMu) Rank() ranked.Rank { return rankOf(9, "symmem.Runtime.mu") }

// Rank is the place of Group.state.
func (groupState) Rank() ranked.Rank { return rankOf(10, "symmem.Group.state") }

// Rank is the place of fault.mu.
func (faultMu) Rank() ranked.Rank { return rankOf(11, "symmem.fault.mu") }

// Rank is the place of callSites.mu.
func (sitesMu) Rank() ranked.Rank { return rankOf(12, "symmem.callSites.mu") }

// Rank is the place of localWorld.mu.
func (membersMu) Rank() ranked.Rank { return rankOf(13, "symmem.localWorld.mu") }

// rankOf is the place of a lock that is never held while this rank waits for another one.
func rankOf(place int, name string) ranked.Rank {
	return ranked.Rank{Order: ranked.Root + place, Name: name}
}

// waitingRank is the place of a lock that may be held while this rank waits for another one.
func waitingRank(place int, name string) ranked.Rank {
	r := rankOf(place, name)
	r.Waits = true
	return r
}
