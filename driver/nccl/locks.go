package nccl

import "symmem/internal/ranked"

// The classes of this package's locks, in the order in which a goroutine takes them. doc.go names
// them in the same order.
type (
	graphMu         struct{}
	streamMu        struct{}
	scratchMu       struct{}
	segmentMu       struct{}
	communicatorMu  struct{}
	messagesMu      struct{}
	busyMu          struct{}
	launchesMu      struct{}
	exchangeMu      struct{}
	peersParting    struct{}
	asideMu         struct{}
	codeMu          struct{}
	eventMu         struct{}
	eventPoolMu     struct{}
	streamQuestions struct{}
	streamFaults    struct{}
	pinnedMu        struct{}
	deviceMu        struct{}
	deviceHolding   struct{}
)

// Rank is the place of graph.mu.
func (graphMu) Rank() ranked.Rank { return waitingRank(1, "nccl.graph.mu") }

// Rank is the place of stream.mu.
func (streamMu) Rank() ranked.Rank { return waitingRank(2, "nccl.stream.mu") }

// Rank is the place of scratch.mu.
func (scratchMu) Rank() ranked.Rank { return rankOf(3, "nccl.scratch.mu") }

// Rank is the place of segment.mu.
func (segmentMu) Rank() ranked.Rank { return rankOf(4, "nccl.segment.mu") }

// Rank is the place of communicator.mu. A launch of a graph takes those of several groups, in the
// order of their numbers.
func (communicatorMu) Rank() ranked.Rank {
	r := waitingRank(5, "nccl.communicator.mu")
	r.Many = true
	return r
}

// Rank is the place of messages.mu.
func (messagesMu) Rank() ranked.Rank { return rankOf(6, "nccl.messages.mu") }

// Rank is the place of busy.mu.
func (busyMu) Rank() ranked.Rank { return rankOf(7, "nccl.busy.mu") }

// Rank is the place of launches.mu.
func (launchesMu) Rank() ranked.Rank { return rankOf(8, "nccl.launches.mu") }

// Rank is the place of exchange.mu.
func (exchangeMu) Rank() ranked.Rank { return rankOf(9, "nccl.exchange.mu") }

// Rank is the place of peers.parting.
func (peersParting) Rank() ranked.Rank { return rankOf(10, "nccl.peers.parting") }

// Rank is the place of aside.mu.
func (asideMu) Rank() ranked.Rank { return rankOf(11, "nccl.aside.mu") }

// Rank is the place of code.mu.
func (codeMu) Rank() ranked.Rank { return rankOf(12, "nccl.code.mu") }

// Rank is the place of event.mu.
func (eventMu) Rank() ranked.Rank { return rankOf(13, "nccl.event.mu") }

// Rank is the place of eventPool.mu.
func (eventPoolMu) Rank() ranked.Rank { return rankOf(14, "nccl.eventPool.mu") }

// Rank is the place of stream.questions.
func (streamQuestions) Rank() ranked.Rank {
	return rankOf(15, "nccl.stream.questions")
}

// Rank is the place of stream.faults.
func (streamFaults) Rank() ranked.Rank { return rankOf(16, "nccl.stream.faults") }

// Rank is the place of pinned.mu.
func (pinnedMu) Rank() ranked.Rank { return rankOf(17, "nccl.pinned.mu") }

// Rank is the place of Device.mu.
func (deviceMu) Rank() ranked.Rank { return rankOf(18, "nccl.Device.mu") }

// Rank is the place of Device.holding.
func (deviceHolding) Rank() ranked.Rank { return rankOf(19, "nccl.Device.holding") }

// rankOf is the place of a lock that is never held while this rank waits for another one.
func rankOf(place int, name string) ranked.Rank {
	return ranked.Rank{Order: ranked.NCCL + place, Name: name}
}

// waitingRank is the place of a lock that may be held while this rank waits for another one.
func waitingRank(place int, name string) ranked.Rank {
	r := rankOf(place, name)
	r.Waits = true
	return r
}
