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
func (graphMu) Rank() ranked.Rank { return ranked.NCCL.Waiting(1, "stream.Graph.mu") }

// Rank is the place of Stream.Mu.
func (streamMu) Rank() ranked.Rank { return ranked.NCCL.Waiting(2, "stream.Stream.Mu") }

// Rank is the place of BusyStreams.mu. It is held when streams are asked whether they are idle,
// which only tries Stream.Mu.
func (busyMu) Rank() ranked.Rank { return ranked.NCCL.At(7, "stream.BusyStreams.mu") }

// Rank is the place of Event.mu.
func (eventMu) Rank() ranked.Rank { return ranked.NCCL.At(13, "stream.Event.mu") }

// Rank is the place of pool.mu.
func (poolMu) Rank() ranked.Rank { return ranked.NCCL.At(14, "stream.pool.mu") }

// Rank is the place of Stream.queryMu.
func (streamQuery) Rank() ranked.Rank { return ranked.NCCL.At(15, "stream.Stream.queryMu") }

// Rank is the place of faults.mu.
func (faultsMu) Rank() ranked.Rank { return ranked.NCCL.At(16, "stream.faults.mu") }

// Rank is the place of Streams.mu.
func (streamsMu) Rank() ranked.Rank { return ranked.NCCL.At(19, "stream.Streams.mu") }
