package stream

import "symmem/internal/ranked"

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

func (graphMu) Rank() ranked.Rank { return ranked.NCCL.Waiting(1, "stream.Graph.mu") }

func (streamMu) Rank() ranked.Rank { return ranked.NCCL.Waiting(2, "stream.Stream.Mu") }

// BusyStreams.mu may be held during calls of Stream.Idle, which only tries to lock Stream.Mu.
func (busyMu) Rank() ranked.Rank { return ranked.NCCL.At(7, "stream.BusyStreams.mu") }

func (eventMu) Rank() ranked.Rank { return ranked.NCCL.At(13, "stream.Event.mu") }

func (poolMu) Rank() ranked.Rank { return ranked.NCCL.At(14, "stream.pool.mu") }

func (adoptionQueryMu) Rank() ranked.Rank { return ranked.NCCL.At(15, "stream.adoption.queryMu") }

func (faultsMu) Rank() ranked.Rank { return ranked.NCCL.At(16, "stream.faults.faultsMu") }

func (streamsMu) Rank() ranked.Rank { return ranked.NCCL.At(19, "stream.Streams.mu") }
