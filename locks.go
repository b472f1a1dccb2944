package symmem

import "symmem/internal/ranked"

// The classes of this package's locks, in the order in which a goroutine must acquire them. doc.go
// lists them in the same order.
type (
	adoptedMu        struct{}
	groupMu          struct{}
	graphMu          struct{}
	valueMu          struct{}
	poolEnding       struct{}
	adoptedWindowsMu struct{}
	streamPinning    struct{}
	poolMu           struct{}
	streamRecording  struct{}
	sharedCapturesMu struct{}
	runtimeMu        struct{}
	groupState       struct{}
	sitesMu          struct{}
)

// Rank returns the rank of AdoptedCommunicator.mu.
func (adoptedMu) Rank() ranked.Rank {
	return ranked.Root.Waiting(1, "symmem.AdoptedCommunicator.mu")
}

// Rank returns the rank of Group.mu.
func (groupMu) Rank() ranked.Rank { return ranked.Root.Waiting(2, "symmem.Group.mu") }

// Rank returns the rank of Graph.mu.
func (graphMu) Rank() ranked.Rank { return ranked.Root.Waiting(3, "symmem.Graph.mu") }

// Rank returns the rank of valueName.mu.
func (valueMu) Rank() ranked.Rank { return ranked.Root.Waiting(4, "symmem.valueName.mu") }

// Rank returns the rank of segmentTable.ending.
func (poolEnding) Rank() ranked.Rank { return ranked.Root.Waiting(5, "symmem.segmentTable.ending") }

// Rank returns the rank of AdoptedCommunicator.windowsMu.
func (adoptedWindowsMu) Rank() ranked.Rank {
	return ranked.Root.Waiting(6, "symmem.AdoptedCommunicator.windowsMu")
}

// Rank returns the rank of Stream.pinning.
func (streamPinning) Rank() ranked.Rank { return ranked.Root.At(7, "symmem.Stream.pinning") }

// Rank returns the rank of Pool.mu.
func (poolMu) Rank() ranked.Rank { return ranked.Root.At(8, "symmem.Pool.mu") }

// Rank returns the rank of Stream.recording.
func (streamRecording) Rank() ranked.Rank { return ranked.Root.At(9, "symmem.Stream.recording") }

// Rank returns the rank of sharedCapturesLock.
func (sharedCapturesMu) Rank() ranked.Rank {
	return ranked.Root.At(10, "symmem.sharedCapturesLock")
}

// Rank returns the rank of Runtime.mu.
func (runtimeMu) Rank() ranked.Rank { return ranked.Root.At(11, "symmem.Runtime.mu") }

// Rank returns the rank of Group.state.
func (groupState) Rank() ranked.Rank { return ranked.Root.At(12, "symmem.Group.state") }

// Rank returns the rank of callSites.mu.
func (sitesMu) Rank() ranked.Rank { return ranked.Root.At(13, "symmem.callSites.mu") }
