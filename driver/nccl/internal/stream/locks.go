package stream

import "symmem/internal/ranked"

// The classes of this package's locks, in the order in which a goroutine takes them. doc.go names
// them in the same order.
type (
	graphMu     struct{}
	streamMu    struct{}
	busyMu      struct{}
	eventMu     struct{}
	poolMu      struct{}
	streamQuery struct{}
	faultsMu    struct{}
	streamsMu   struct{}
)

// Rank is the place of Graph.mu.
func (graphMu) Rank() ranked.Rank { return waitingRank(1, "stream.Graph.mu") }

// Rank is the place of Stream.Mu.
func (streamMu) Rank() ranked.Rank { return waitingRank(2, "stream.Stream.Mu") }

// Rank is the place of BusyStreams.mu. It is held when streams are asked whether they are idle,
// which only tries Stream.Mu.
func (busyMu) Rank() ranked.Rank { return rankOf(7, "stream.BusyStreams.mu") }

// Rank is the place of Event.mu.
func (eventMu) Rank() ranked.Rank { return rankOf(14, "stream.Event.mu") }

// Rank is the place of pool.mu.
func (poolMu) Rank() ranked.Rank { return rankOf(15, "stream.pool.mu") }

// Rank is the place of Stream.queryMu.
func (streamQuery) Rank() ranked.Rank { return rankOf(16, "stream.Stream.queryMu") }

// Rank is the place of faults.mu.
func (faultsMu) Rank() ranked.Rank { return rankOf(17, "stream.faults.mu") }

// Rank is the place of Streams.mu.
func (streamsMu) Rank() ranked.Rank { return rankOf(20, "stream.Streams.mu") }

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
