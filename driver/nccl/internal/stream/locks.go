package stream

import "symmem/internal/ranked"

// Lock classes of this package, in the lock order that doc.go describes.
type (
	graphMu         struct{}
	streamMu        struct{}
	busyMu          struct{}
	eventMu         struct{}
	poolMu          struct{}
	adoptionQueryMu struct{}
	faultsMu        struct{}
	streamsMu       struct{}
)

// Rank returns the lock rank of Graph.mu.
func (graphMu) Rank() ranked.Rank { return ranked.NCCL.Waiting(1, "stream.Graph.mu") }

// Rank returns the lock rank of Stream.Mu.
func (streamMu) Rank() ranked.Rank { return ranked.NCCL.Waiting(2, "stream.Stream.Mu") }

// Rank returns the lock rank of BusyStreams.mu. It may be held during calls of Stream.Idle, which
// only tries to lock Stream.Mu.
func (busyMu) Rank() ranked.Rank { return ranked.NCCL.At(7, "stream.BusyStreams.mu") }

// Rank returns the lock rank of Event.mu.
func (eventMu) Rank() ranked.Rank { return ranked.NCCL.At(13, "stream.Event.mu") }

// Rank returns the lock rank of pool.mu.
func (poolMu) Rank() ranked.Rank { return ranked.NCCL.At(14, "stream.pool.mu") }

// Rank returns the lock rank of adoption.queryMu.
func (adoptionQueryMu) Rank() ranked.Rank { return ranked.NCCL.At(15, "stream.adoption.queryMu") }

// Rank returns the lock rank of faults.faultsMu.
func (faultsMu) Rank() ranked.Rank { return ranked.NCCL.At(16, "stream.faults.faultsMu") }

// Rank returns the lock rank of Streams.mu.
func (streamsMu) Rank() ranked.Rank { return ranked.NCCL.At(19, "stream.Streams.mu") }
